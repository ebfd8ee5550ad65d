"""Bare Redis: round trips through a blocking socket, and jobs claimed by batches in Lua."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.limits.sqlite import PAYLOAD
from benchmarks.places import RedisPlace

BATCH = 100
TRIPS = 5_000
CLAIM = Path(__file__).with_name("claim.lua").read_text()


def bare_redis(place: RedisPlace, *, jobs: int) -> dict[str, float]:
    """Return round trips and jobs, per second of time and per second of the server's CPU."""
    import redis

    place.fresh()
    client = redis.Redis(port=place.server.port)
    began = time.perf_counter()
    for _ in range(TRIPS):
        client.ping()
    trips = TRIPS / (time.perf_counter() - began)
    began = time.perf_counter()
    _bare_trips(place.server.port)
    bare = TRIPS / (time.perf_counter() - began)

    for start in range(0, jobs, 1_000):
        numbers = range(start, start + 1_000)
        client.zadd("line", {f"{number:036d}": number for number in numbers})
        client.hset("bodies", mapping={f"{number:036d}": PAYLOAD for number in numbers})
    claim = client.register_script(CLAIM)
    keys = ["line", "leases", "bodies"]
    done: list[bytes] = []
    cpu, began = place.cpu(), time.perf_counter()
    for _ in range(0, jobs, BATCH):
        done, _bodies = claim(keys, [BATCH, 1, *done])
    lasted, cpu = time.perf_counter() - began, place.cpu() - cpu
    client.close()
    place.fresh()
    return {
        "redis, round trips, bare socket": bare,
        "redis, round trips, redis-py": trips,
        "redis, claim and finish by batches of 100 in Lua": jobs / lasted,
        "redis, the same for each CPU second of the server": jobs / max(cpu, 0.01),
    }


def _bare_trips(port: int) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(TRIPS):
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            connection.recv(64)

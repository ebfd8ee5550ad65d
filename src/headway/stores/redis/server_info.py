"""What the settings of a server mean for the jobs on it."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.errors import StoreError
from headway.stores.redis.client import RedisClient
from headway.stores.redis.library import library
from headway.stores.redis.server_versions import lacks_fixes
from headway.stores.transport import Transport


async def describe_server(client: RedisClient, shown: str, transport: Transport, replicas: int) -> dict[str, str]:
    """Return what an operator should know of the server, above all how durable jobs are."""
    info = await _info(client)
    persistence = "appendonly" if info.get("aof_enabled") == "1" else "none"
    fsync = await _setting(client, "appendfsync")
    policy = info.get("maxmemory_policy", "noeviction")
    survives = {
        "always": "process, system and power loss (appendfsync always)",
        # While the disk is busy, servers delay writes to it for up to two seconds.
        "everysec": "process, system and power loss once about two seconds have passed (appendfsync everysec)",
        "no": "process loss; a system or power loss takes what was not yet written (appendfsync no)",
    }
    kept = survives.get(fsync, "as its settings say; we may not read them") if persistence == "appendonly" else (
        "no restart: the server writes no append-only file; set appendonly yes"
    )  # fmt: skip
    if replicas:
        kept += f"; a submit waits for {replicas} replica(s)"
    facts = {
        "store": f"{info.get('server_name', 'redis')}, {shown}",
        "server": info.get("valkey_version") or info.get("redis_version", "unknown"),
        "functions": library().name,
        "durability": f"an accepted job survives {kept}",
        "transport": transport.value,
        "replicas": info.get("connected_slaves", "0"),
    }
    if failover := await _failover(client, info, replicas):
        facts["failover"] = failover
    if safe := lacks_fixes(info.get("server_name", "redis"), facts["server"]):
        facts["outdated"] = f"the server is {facts['server']} and lacks fixes of its function engine"
        facts["safe release"] = safe
    if policy != "noeviction":
        facts["warning"] = f"maxmemory-policy is {policy}: a full server throws jobs away; set it to noeviction"
    return facts


async def _failover(client: RedisClient, info: Mapping[str, str], replicas: int) -> str | None:
    """Return what a failover may lose, or None if no server could replace this one."""
    if not client.replaceable and info.get("connected_slaves", "0") == "0":
        return None
    least = await _setting(client, "min-replicas-to-write")
    if least in ("", "0"):
        return (
            "may lose what the replica did not have (jobs, results and idempotency keys): nothing or milliseconds "
            "when it is planned, seconds if the old master is cut off; min-replicas-to-write is "
            f"{least or 'not readable'}"
        )
    if not replicas:
        return f"loses at most milliseconds (min-replicas-to-write {least}); ?replicas=1 makes that none"
    return f"loses nothing that was accepted (min-replicas-to-write {least}, replicas={replicas})"


async def _info(client: RedisClient) -> dict[str, str]:
    text = await client.ask("INFO")
    lines = text.decode().splitlines() if isinstance(text, bytes) else str(text).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


async def _setting(client: RedisClient, name: str) -> str:
    try:
        found = await client.ask("CONFIG", "GET", name)
    except StoreError:  # Managed servers often refuse CONFIG.
        return ""
    values = found.values() if isinstance(found, dict) else found[1:]
    return next((value.decode() for value in values), "")

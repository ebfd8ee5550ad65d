"""Parsers accept or refuse any input. They raise no other exception, and the server has no internal error."""

# S-40

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from headway import Headway
from headway.cli.main import COMMANDS, build, main
from headway.core.cron import next_tick, parse_cron
from headway.core.errors import HeadwayError, PolicyError
from headway.core.policy.writer import policy_data
from headway.policy_store.versions import load_policy
from headway.server.api import headway_api
from tests.fuzz.mutating import ODD_TEXTS, odd_body, odd_text, odd_value, turns
from tests.server.conftest import client_for, make_app

ROOT = Path(__file__).parents[2]
NOW_AT = 1_760_000_000_000

CRONS = [
    "* * * * *", "*/5 0-6,12 1,15 JAN-MAR MON-FRI", "0 30 2 * * *", "0 0 29 2 ?", "@daily", "5/7 * L * 0", "0 0 * * 7",
]  # fmt: skip
ZONES = ["UTC", "Europe/Paris", "America/St_Johns", "Australia/Lord_Howe"]


@pytest.mark.parametrize("part", ["expression", "zone"])
def test_cron_expressions(seed: int, part: str) -> None:
    read = 0
    for chance in turns(seed):
        text = odd_text(chance, CRONS) if part == "expression" else chance.choice(CRONS)
        zone = odd_text(chance, ZONES) if part == "zone" else chance.choice(ZONES)
        try:
            cron = parse_cron(text, zone)
        except ValueError:
            continue
        read += 1
        tick_at = next_tick(cron, NOW_AT)
        assert tick_at is None or tick_at > NOW_AT, (text, zone)
    assert read > 3


POLICIES = [file.read_text() for file in sorted(ROOT.glob("examples/policies/*.toml"))]


def test_policy_files(seed: int, tmp_path: Path) -> None:
    assert POLICIES
    file = tmp_path / "policy.toml"
    read = 0
    for chance in turns(seed):
        text = odd_text(chance, POLICIES)
        file.write_bytes(text.encode(errors="surrogatepass"))
        try:
            load_policy(file)
            read += 1
        except PolicyError:
            continue
    assert read > 10


def test_policies_as_json(seed: int, tmp_path: Path) -> None:
    good = []
    for file in sorted(ROOT.glob("examples/policies/*.toml")):
        good.append(policy_data(load_policy(file)))
    path = tmp_path / "policy.json"
    read = 0
    for chance in turns(seed):
        data = chance.choice(good)
        for _ in range(chance.randint(1, 3)):
            data = odd_value(chance, data)
        path.write_text(json.dumps(data))
        try:
            policy = load_policy(path)
        except PolicyError:
            continue
        read += 1
        json.dumps(policy_data(policy))
    assert read > 10


# ---------------------------------------------------------------------- the command line

LINES = [
    example.removeprefix("headway ").split()
    for _, _, *words in COMMANDS
    for example in words[1:]
    if "<(" not in example
]


def odd_words(chance: Any) -> list[str]:
    words = list(chance.choice(LINES))
    for _ in range(chance.randint(1, 3)):
        place = chance.randint(1, len(words))
        match chance.randrange(4):
            case 0:
                words.insert(place, chance.choice(ODD_TEXTS))
            case 1:
                words.insert(place, odd_text(chance, words))
            case 2:
                del words[place:]
            case _:
                other = chance.choice(LINES)
                words[place:] = other[1:]
    return words


def test_command_lines_are_read_or_refused(seed: int) -> None:
    app = build()
    read = 0
    for chance in turns(seed):
        words = odd_words(chance)
        try:
            app.parse_args(words)
            read += 1
        except (CycloptsError, HeadwayError):
            continue
    assert read > 10


SAFE = {
    "jobs": ["--limit", "--task", "--status", "--tenant"], "status": [], "why": [], "cancel": [], "retry": [],
    "pause": ["--lane", "--tenant", "--task"], "resume": ["--lane"], "drain": [], "stats": [], "workers": [],
}  # fmt: skip


def test_commands_end_with_a_code_and_no_traceback(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, chance in enumerate(turns(seed)):
        if number % 5:  # Each opens a store.
            continue
        name = chance.choice(list(SAFE))
        words = [odd_text(chance, ["0198c1f2-7a3b-7c4d-8e5f-001122334455", "demo.sleep", "low"])]
        if SAFE[name] and chance.random() < 0.7:
            words.insert(0, chance.choice(SAFE[name]))
        if any(word in ("-h", "--help", "--version") or word.startswith("--s") for word in words):
            continue
        code = main([name, *words, "--store", f"sqlite:///{tmp_path}/headway.db"])
        shown = capsys.readouterr()
        assert code in (0, 1, 2), (name, words, shown.err)
        assert "Traceback" not in shown.err, (name, words, shown.err)
        if code:
            assert re.search(r"\[\w+\]\s*$", shown.err) or shown.out, (name, words, shown.err)


# ---------------------------------------------------------------------- bodies of requests

SKIPPED = re.compile(r"/events$|/interactive|/live$|/metrics")  # They stream, or take no body.


def requests_of(schema: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return every request that the service knows, with an example of its body."""
    found = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if SKIPPED.search(path):
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            found.append((method.upper(), path, example_of(body, schema)))
    return found


def example_of(shape: dict[str, Any], schema: dict[str, Any]) -> Any:
    if "$ref" in shape:
        shape = schema["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
    if shape.get("examples"):
        return shape["examples"][0]
    return shape.get("example", {})


async def test_bodies_of_requests(seed: int) -> None:
    app: Headway = make_app("memory://")
    async with app:
        api = headway_api(app, hosts=["testserver"])
        known = requests_of(api.openapi())
        assert len(known) > 20
        seen = set()
        async with client_for(api) as http:
            task_id = (await http.post("/api/v1/tasks", json={"task_type": "add", "parameters": {"a": 1}})).json()[
                "task_id"
            ]
            worker_id = (
                await http.post("/internal/workers/register", json={"capabilities": [], "capacity": 3})
            ).json()["worker_id"]
            names = [task_id, worker_id, "policy", "1"]
            for chance in turns(seed):
                method, path, good = chance.choice(known)
                if isinstance(good, dict):
                    good = {key: value for key, value in good.items() if key != "wait_seconds"}
                body = odd_body(chance, good) if method != "GET" else b""
                if b"wait_seconds" in body:
                    continue
                filled = re.sub(r"\{\w+\}", lambda _: _quoted(chance, names), path)  # noqa: B023 - used at once
                answer = await http.request(
                    method, filled, content=body, headers={"content-type": "application/json"}, timeout=30
                )
                shown = (method, filled, body, answer.status_code, answer.text[:500])
                assert answer.status_code < 500, shown
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == "application/problem+json", shown
                    assert answer.json()["code"], shown
                seen.add((method, path))
        assert len(seen) > 20


def _quoted(chance: Any, names: list[str]) -> str:
    name = chance.choice(names) if chance.random() < 0.7 else odd_text(chance, names)
    quoted = "".join(f"%{byte:02X}" for byte in name.encode(errors="surrogatepass"))
    return quoted or "x"

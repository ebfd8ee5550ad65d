"""Policies in the store: every version is kept and one is in force, however many processes apply at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headway.core.errors import PolicyError
from headway.core.policy.document import BUILT_IN, LimitRule, Policy
from headway.core.policy.writer import policy_data
from headway.policy_store.versions import (
    CURRENT,
    apply_policy,
    current_version,
    history,
    load_policy,
    read_applied,
    read_current,
    roll_back,
)
from headway.stores.base import POLICIES, RULES, Document, Store
from headway.stores.memory import MemoryStore
from headway.stores.rule_codec import read_rules
from headway.testing.clock import ManualClock


def a_policy(number: int) -> Policy:
    """Return a policy that differs from others by its number, also in the rules that stores enforce."""
    return replace(BUILT_IN, crash_limit=number, limits={"x": LimitRule(concurrency=number)})


async def versions(store: Store) -> list[int]:
    return [applied.version for applied in await history(store)]


async def governing(store: Store) -> int | None:
    """Return the number of the policy that the store enforces."""
    (document,) = await store.read(RULES, "policy")
    return read_rules(document.body).limits["x"].concurrency


async def test_a_store_begins_without_a_policy(store: Store) -> None:
    assert await read_current(store) is None
    assert await history(store) == []
    assert await current_version(store) == 0


async def test_a_policy_that_is_applied_is_in_force_and_governs_the_store(store: Store) -> None:
    applied = await apply_policy(store, a_policy(4), now_at=17, note="four")
    assert (applied.version, applied.applied_at, applied.note) == (1, 17, "four")
    current = await read_current(store)
    assert current is not None
    assert (current, current.policy) == (applied, a_policy(4))
    assert await governing(store) == 4


async def test_every_version_is_kept(store: Store) -> None:
    made = [await apply_policy(store, a_policy(number), now_at=number) for number in (1, 2, 3)]
    assert await history(store) == made
    assert [applied.policy.crash_limit for applied in made] == [1, 2, 3]
    assert await read_applied(store, 2) == made[1]
    assert await read_current(store) == made[2]


async def test_what_says_the_same_makes_no_new_version(store: Store) -> None:
    first = await apply_policy(store, a_policy(1), now_at=1, note="one")
    lanes = {name: replace(lane, weight=float(lane.weight)) for name, lane in reversed(list(BUILT_IN.lanes.items()))}
    assert await apply_policy(store, replace(a_policy(1), lanes=lanes), now_at=2, note="again") == first
    await apply_policy(store, a_policy(2), now_at=3)
    assert (await apply_policy(store, a_policy(1), now_at=4)).version == 3


async def test_applying_again_mends_a_store_that_was_not_told(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    await store.write(RULES, "policy", None)
    await apply_policy(store, a_policy(1), now_at=2)
    assert await governing(store) == 1


async def test_going_back_makes_a_new_version_of_what_was_before(store: Store) -> None:
    for number in (1, 2, 3):
        await apply_policy(store, a_policy(number), now_at=number)
    back = await roll_back(store, now_at=9)
    assert (back.version, back.policy, back.applied_at) == (4, a_policy(2), 9)
    assert back.note == "rolled back to version 2"
    assert await governing(store) == 2
    assert (await roll_back(store, now_at=10)).policy == a_policy(3)
    assert (await roll_back(store, to=1, now_at=11)).policy == a_policy(1)
    assert await versions(store) == [1, 2, 3, 4, 5, 6]


async def test_going_back_to_what_is_in_force_changes_nothing(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    assert (await roll_back(store, to=1, now_at=2)).version == 1


async def test_there_must_be_something_to_go_back_to(store: Store) -> None:
    with pytest.raises(PolicyError, match="no policy was ever applied"):
        await roll_back(store, now_at=1)
    await apply_policy(store, a_policy(1), now_at=1)
    with pytest.raises(PolicyError, match=r"no policy version 7 \(versions: 1\)"):
        await roll_back(store, to=7, now_at=2)
    assert await versions(store) == [1]


async def test_the_first_policy_is_rolled_back_to_the_built_in_one(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    back = await roll_back(store, now_at=2)
    assert (back.version, back.policy, back.note) == (2, BUILT_IN, "rolled back to the built-in policy")
    assert (await roll_back(store, now_at=3)).policy == a_policy(1)
    assert (await roll_back(store, to=0, now_at=4)).policy == BUILT_IN
    assert (await read_applied(store, 0)).policy == BUILT_IN
    assert await versions(store) == [1, 2, 3, 4]


async def test_many_that_apply_at_once_all_get_a_version_and_the_last_governs(store: Store) -> None:
    made = await asyncio.gather(*(apply_policy(store, a_policy(number), now_at=number) for number in range(1, 7)))
    assert sorted(applied.version for applied in made) == [1, 2, 3, 4, 5, 6]
    assert await history(store) == sorted(made, key=lambda applied: applied.version)
    current = await read_current(store)
    assert current is not None
    assert current.version == 6
    assert await governing(store) == current.policy.crash_limit


class RacingStore(MemoryStore):
    """A store in which another process acts just before a document of the test is written."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.before: dict[tuple[str, str], Policy] = {}

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        policy = self.before.pop((kind, name), None)
        if policy is not None:
            await apply_policy(self, policy, now_at=99)
        return await super().write(kind, name, body, if_version=if_version)


@pytest.mark.parametrize(
    "place, ours, in_force",
    [
        pytest.param((POLICIES, "000001"), 2, 1, id="our number is taken"),
        pytest.param((POLICIES, CURRENT), 1, 2, id="a later version is current before ours is"),
        pytest.param((RULES, "policy"), 1, 2, id="a later version governs before ours does"),
    ],
)
async def test_whoever_comes_between_the_later_version_stands(
    clock: ManualClock, place: tuple[str, str], ours: int, in_force: int
) -> None:
    store = RacingStore(clock)
    store.before[place] = a_policy(2)
    applied = await apply_policy(store, a_policy(1), now_at=1)
    assert (applied.version, applied.policy) == (ours, a_policy(1))
    current = await read_current(store)
    assert current is not None
    assert current.policy == a_policy(in_force)
    assert await governing(store) == in_force


async def test_a_version_that_never_came_into_force_is_not_gone_back_to(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    (first,) = await store.read(POLICIES, "000001")
    orphan = msgspec.json.decode(first.body) | {"version": 2, "policy": policy_data(a_policy(9)), "digest": "other"}
    await store.write(POLICIES, "000002", msgspec.json.encode(orphan))  # Its applier died here.
    assert await current_version(store) == 1
    assert (await apply_policy(store, a_policy(3), now_at=3)).version == 3
    assert (await roll_back(store, now_at=4)).policy == a_policy(1)


async def write_newer(store: Store) -> None:
    """Apply a policy as a newer release may."""
    data = policy_data(BUILT_IN) | {"quantum": 3}
    body = {"version": 2, "applied_at": 5, "note": "", "digest": "new", "policy": data, "more": True}
    await store.write(POLICIES, "000002", msgspec.json.encode(body))
    await store.write(POLICIES, CURRENT, msgspec.json.encode({"version": 2, "before": 1}))


async def test_a_version_of_a_newer_release_is_named_and_can_be_gone_back_from(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    await write_newer(store)
    with pytest.raises(PolicyError, match="cannot read policy version 2; a newer one may have written it") as caught:
        await read_current(store)
    assert [problem.key for problem in caught.value.problems] == ["quantum"]
    assert [applied.note for applied in await history(store)] == ["", ""]
    assert (await roll_back(store, now_at=6)).version == 3
    assert (await apply_policy(store, a_policy(2), now_at=7)).version == 4


async def test_a_document_that_is_no_policy_is_refused_clearly(store: Store) -> None:
    await apply_policy(store, a_policy(1), now_at=1)
    await store.write(POLICIES, "000001", b"nonsense")
    with pytest.raises(PolicyError, match="a policy in the store cannot be read"):
        await read_current(store)


async def test_documents_are_plain(store: Store) -> None:
    applied = await apply_policy(store, a_policy(1), now_at=1, note="n")
    (current,) = await store.read(POLICIES, CURRENT)
    (version,) = await store.read(POLICIES, "000001")
    assert current == Document(POLICIES, CURRENT, 1, b'{"version":1,"before":0}')
    assert msgspec.json.decode(version.body) == {
        "version": 1,
        "applied_at": 1,
        "note": "n",
        "digest": applied.digest,
        "policy": policy_data(a_policy(1)),
    }


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "name, text",
    [
        pytest.param("p.toml", "crash_limit = 5", id="toml"),
        pytest.param("p.json", '{"crash_limit": 5}', id="json"),
        pytest.param("p.conf", "crash_limit = 5", id="toml by another name"),
        pytest.param("p", '{"crash_limit": 5}', id="json without a name"),
    ],
)
def test_a_policy_file_is_toml_or_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert load_policy(tmp_path / name) == replace(BUILT_IN, crash_limit=5)


@pytest.mark.parametrize(
    "name, text, message",
    [
        pytest.param("p.toml", "crash_limit = ", r"p\.toml cannot be read: Invalid value \(at", id="no toml"),
        pytest.param("p.json", "crash_limit = 5", r"p\.json cannot be read: Expecting value", id="no json"),
        pytest.param("p.conf", "{", r"p\.conf cannot be read: Invalid .*; Expecting", id="neither"),
        pytest.param("p.json", "[1]", r"p\.json: expected a table, found a list", id="no table"),
        pytest.param(
            "p.toml",
            "crash = 5",
            r"p\.toml line 1, column 1: crash: unknown key; did you mean 'crash_limit'\?",
            id="a key",
        ),
        pytest.param(
            "p.json", '{"lanes":\n {"a": {}}}', r"p\.json line 2, column 3: lanes\.a\.level: ", id="a json key"
        ),
        pytest.param("p.conf", '{"x":\n1}', r"p\.conf line 1, column 2: x: unknown key", id="json by another name"),
        pytest.param("other.toml", None, "cannot be read: .*No such file", id="no file"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(PolicyError, match=message):
        load_policy(tmp_path / name)


def test_a_file_that_is_not_utf_8_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b"# one\n# \xff")
    with pytest.raises(PolicyError, match=r"p\.toml line 2, column 3: the file is not text in UTF-8.* 0xff"):
        load_policy(tmp_path / "p.toml")

"""Policy versions in the store: every version that was ever applied, and which one is current."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from headway.core.errors import PolicyConflict, PolicyError, StoreBusy
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.key_positions import FindPosition, json_positions, toml_positions
from headway.core.policy.reader import read_policy
from headway.core.policy.writer import policy_data
from headway.core.text_position import find_bad_byte
from headway.core.timestamps import write_moment
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import POLICIES, Store
from headway.stores.unreadable import DAMAGE, DocumentReader, read_or

CURRENT = "current"
TRIES = 20  # Attempts. Each failure means that another process applied a policy, and 20 never do at once.


class PolicyVersion(msgspec.Struct, frozen=True, dict=True):
    """A version of the policy. Equal policies have an equal ``digest``, however they were written."""

    version: int
    applied_at: int
    note: str
    digest: str
    data: dict[str, Any] = msgspec.field(name="policy")  # So named in the store.

    def facts(self) -> dict[str, Any]:
        """Return the version as other programs read it, without the policy itself."""
        applied_at = write_moment(self.applied_at) if self.version else None
        return {"version": self.version, "applied_at": applied_at, "note": self.note, "digest": self.digest or None}

    @cached_property
    def policy(self) -> Policy:
        """Return the policy. Raise ``PolicyError`` if a newer Headway has written it and this one cannot read it."""
        try:
            return read_policy(self.data, f"policy version {self.version}")
        except PolicyError as problem:
            why = f"this Headway cannot read policy version {self.version}; a newer one may have written it"
            raise PolicyError(f"{why}:\n{problem}", problems=problem.problems) from problem


class _Pointer(msgspec.Struct, frozen=True):
    """The numbers of the current version and of the one before. Versions only grow, so it never points back."""

    version: int = 0
    before: int = 0


_Format = tuple[Callable[[str], Any], Callable[[str], FindPosition]]

_TOML: _Format = (tomllib.loads, toml_positions)
_JSON: _Format = (json.loads, json_positions)
_READERS: dict[str, tuple[_Format, ...]] = {".toml": (_TOML,), ".json": (_JSON,)}
_encode = msgspec.json.Encoder().encode
_read_version = msgspec.json.Decoder(PolicyVersion)
_read_pointer = msgspec.json.Decoder(_Pointer)


def load_policy(path: Path) -> Policy:
    """Read a policy file: ``.toml`` or ``.json``, or either under another name. Raises ``PolicyError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise PolicyError(f"{path} cannot be read: {problem.strerror}", where=str(path)) from problem
    except UnicodeDecodeError as problem:
        raise PolicyError(f"{path} {find_bad_byte([problem.object])}", where=str(path)) from problem
    problems: list[str] = []
    for read, positions in _READERS.get(path.suffix.lower(), (_TOML, _JSON)):
        try:
            data = read(text)
        except (ValueError, RecursionError) as problem:
            problems.append(str(problem))
        else:
            return read_policy(data, str(path), partial(positions, text))
    raise PolicyError(f"{path} cannot be read: {'; '.join(problems)}", where=str(path))


async def read_current(store: Store) -> PolicyVersion | None:
    """Read the current policy, or None if none was ever applied.

    Raises ``PolicyError`` if this Headway cannot read it. A worker then keeps its last one.
    """
    pointer, _ = await _read_current_pointer(store)
    if not pointer.version:
        return None
    current = await read_applied(store, pointer.version)
    _ = current.policy
    return current


async def read_applied(store: Store, version: int) -> PolicyVersion:
    """Read one version, whether or not its policy can be read. Raises ``PolicyError`` if it does not exist.

    Version 0 is the built-in policy, which is current until another one is applied.
    """
    if version == 0:
        return PolicyVersion(0, 0, "built in", "", policy_data(BUILT_IN))
    for document in await store.read(POLICIES, _name(version)):
        try:
            return _read_version.decode(document.body)
        except DAMAGE as problem:
            raise PolicyError(f"a policy in the store cannot be read: {problem}") from problem
    known = [applied.version for applied in await history(store)]
    raise PolicyError(f"there is no policy version {version} (versions: {', '.join(map(str, known)) or 'none yet'})")


async def history(store: Store) -> list[PolicyVersion]:
    """Read all versions that can be read, the oldest first."""
    reader = DocumentReader(POLICIES, _read_version.decode)
    documents = [document for document in await store.read(POLICIES) if document.name != CURRENT]
    found = [made for document in documents if (made := reader.read(document.name, document.body)) is not None]
    return sorted(found, key=lambda applied: applied.version)


async def current_version(store: Store) -> int:
    """Return the number of the current version, or 0 if none was ever applied."""
    return (await _read_current_pointer(store))[0].version


async def apply_policy(
    store: Store, policy: Policy, *, now_at: int, note: str = "", if_version: int | None = None
) -> PolicyVersion:
    """Make a policy current as a new version. If it equals the current policy, no version is added.

    Of two policies that are applied at once, both are kept and the later version is current. With ``if_version``, the
    second one raises ``PolicyConflict`` instead, because that version is no longer current.
    """
    data = policy_data(policy)
    read_policy(data, "the policy")  # A policy that cannot be read again must not become current.
    digest = hashlib.sha256(_encode(data)).hexdigest()
    for _ in range(TRIES):
        known = await history(store)
        pointer, _ = await _find_pointer(store)
        current = next((applied for applied in known if applied.version == pointer.version), None)
        if current is not None and current.digest == digest:
            await _finish_pending(store)
            return current
        if if_version is not None and pointer.version != if_version:
            raise _conflict(pointer.version, if_version)
        names = [document.name for document in await store.read(POLICIES) if document.name.isdecimal()]
        version = 1 + max(map(int, names), default=0)  # A damaged version keeps its number.
        made = PolicyVersion(version, now_at, note, digest, data)
        if await store.write(POLICIES, _name(version), _encode(made), if_version=0) is not None:
            if if_version is None:
                await _point(store, version)
            else:
                await _point_from(store, if_version, version)
            await _finish_pending(store)
            return made
    raise StoreBusy("other processes keep applying policies; try again")


async def roll_back(store: Store, *, to: int | None = None, now_at: int) -> PolicyVersion:
    """Make an earlier version current again, as a new version: the one before the current, or the one named.

    The version before the first one is 0, the built-in policy. Raises ``PolicyError`` if the version does not exist, or
    if this Headway cannot read it.
    """
    pointer, _ = await _read_current_pointer(store)
    if not pointer.version:
        raise PolicyError("no policy was ever applied, so there is none to go back to")
    earlier = await read_applied(store, pointer.before if to is None else to)
    note = f"rolled back to {f'version {earlier.version}' if earlier.version else 'the built-in policy'}"
    return await apply_policy(store, earlier.policy, now_at=now_at, note=note)


def pointed_version(body: bytes) -> int:
    """Return the version that the document of the current policy names. Raises ``PolicyError`` if it is damaged."""
    return _decode_pointer(body).version


def _decode_pointer(body: bytes) -> _Pointer:
    try:
        return _read_pointer.decode(body)
    except DAMAGE as problem:
        raise PolicyError(f"cannot read which policy is current; apply the policy again: {problem}") from problem


async def _read_current_pointer(store: Store) -> tuple[_Pointer, int]:
    """Read the current version's number, with the version of its document. Raises ``PolicyError`` if it is damaged."""
    for document in await store.read(POLICIES, CURRENT):
        return _decode_pointer(document.body), document.version
    return _Pointer(), 0


async def _find_pointer(store: Store) -> tuple[_Pointer, int]:
    """Read the current version's number for a process that replaces it: 0 if the document is damaged."""
    for document in await store.read(POLICIES, CURRENT):
        return read_or(_Pointer(), partial(_read_pointer.decode, document.body)), document.version
    return _Pointer(), 0


async def _point(store: Store, version: int) -> None:
    """Make a version the current one, unless a later one is already."""
    for _ in range(TRIES):
        pointer, document_version = await _find_pointer(store)
        if pointer.version >= version:
            return
        body = _encode(_Pointer(version, pointer.version))
        if await store.write(POLICIES, CURRENT, body, if_version=document_version) is not None:
            return
    raise StoreBusy("other processes keep applying policies; try again")


async def _point_from(store: Store, before: int, version: int) -> None:
    """Make a version the current one if ``before`` still is. Else remove it and raise ``PolicyConflict``."""
    pointer, document_version = await _find_pointer(store)
    if pointer.version == before:
        body = _encode(_Pointer(version, before))
        if await store.write(POLICIES, CURRENT, body, if_version=document_version) is not None:
            return
        pointer, _ = await _find_pointer(store)
    await store.write(POLICIES, _name(version), None)
    raise _conflict(pointer.version, before)


def _conflict(current: int, before: int) -> PolicyConflict:
    return PolicyConflict(f"version {current} was applied meanwhile, and this policy is based on {before}")


async def _finish_pending(store: Store) -> None:
    """Write the rules of the current policy, and repeat if another process has applied a later one meanwhile."""
    for _ in range(TRIES):
        current = await read_current(store)
        if current is None:
            return
        await write_rules(store, current.policy)
        if await current_version(store) == current.version:
            return


def _name(version: int) -> str:
    return f"{version:06d}"

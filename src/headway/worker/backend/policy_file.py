"""Applies the policy file that a worker was started with."""

from __future__ import annotations

import hashlib

import msgspec

from headway.core.policy.document import Policy
from headway.core.policy.writer import policy_data
from headway.policy_store.versions import apply_policy
from headway.security.audit import PYTHON
from headway.security.audited_store import audited
from headway.stores.base import Store

FILES = "policy_file"  # The kind of document that holds the digest of the last applied policy file.


async def apply_file(store: Store, policy: Policy, path: str, *, now_at: int) -> None:
    """Apply the policy of a file that a process was started with, unless the last applied file had the same policy.

    So a new file takes effect when it is deployed, and a later change by an operator survives a restart.
    """
    digest = hashlib.sha256(msgspec.json.encode(policy_data(policy), order="deterministic")).digest()
    known = await store.read(FILES, "last")
    if known and known[0].body == digest:
        return
    await apply_policy(audited(store, PYTHON), policy, now_at=now_at, note=f"from {path}")
    await store.write(FILES, "last", digest)

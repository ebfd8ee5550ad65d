"""Decide which claimed jobs the server hands to an HTTP worker, and fill in the results that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headway.client.codec import fill_inputs, has_inputs, payload_body, split_server
from headway.core.errors import JobError, PayloadError, UpstreamFailed
from headway.core.lease import Lease
from headway.core.policy.document import INTERACTIVE
from headway.core.policy.retry import Ending, Raised, Released
from headway.protocol.conversion import leased_task, result_of
from headway.protocol.sessions import AddressRefused, AddressSigner
from headway.protocol.worker import LeasedTask, ResultReport
from headway.server.gateway.long_poll import ANSWER_BYTES
from headway.stores.base import Store

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Handout(NamedTuple):
    """The tasks to hand out, and reports that end the leases of the others.

    ``more``: some of the others wait again, because the reply has no room for the results that they take.
    """

    tasks: list[LeasedTask]
    refused: list[ResultReport]
    more: bool = False


async def hand_out(store: Store, leases: Sequence[Lease], addresses: AddressSigner) -> Handout:
    """Return what becomes of claimed jobs.

    Not handed out are jobs whose arguments this release cannot read, sessions whose server address was not signed,
    and jobs that take the result of a job which did not complete.
    """
    tasks, refused, size, more = list[LeasedTask](), list[ResultReport](), 0, False
    for lease in leases:
        ending: Ending | None = None
        try:
            parameters = await _parameters(store, lease, addresses)
            size += len(parameters)
            if size > ANSWER_BYTES and tasks and has_inputs(lease.payload):
                ending, more = _NO_ROOM, True
                size -= len(parameters)
            else:
                tasks.append(leased_task(lease, parameters))
        except UpstreamFailed as problem:
            ending = Raised(JobError("UpstreamFailed", str(problem), retriable=False))
        except (AddressRefused, PayloadError, msgspec.DecodeError, IndexError):  # IndexError: a source is missing.
            ending = Raised(_UNREADABLE)
        if ending is not None:
            refused.append(result_of(ending, lease.job_id, lease.token))
    return Handout(tasks, refused, more)


async def _parameters(store: Store, lease: Lease, addresses: AddressSigner) -> bytes:
    """Return the arguments of a job as JSON. One job at a time, since each result may take a megabyte."""
    payload = lease.payload
    if lease.rung == INTERACTIVE and (signed := split_server(payload)[1]) is not None:
        await addresses.check(signed)
    if has_inputs(payload):
        (upstreams,) = await store.upstreams([lease.job_id], results=True)
        payload = fill_inputs(payload, upstreams)
    parameters = bytes(payload_body(payload))
    _read_object(parameters)
    return parameters


_UNREADABLE = JobError("PayloadError", "its arguments cannot be read by this server", retriable=False)
_NO_ROOM = Released("the reply to the worker has no room for it")

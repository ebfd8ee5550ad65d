"""Decide which claimed jobs the server hands to an HTTP worker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headway.client.codec import payload_body, split_server
from headway.core.errors import JobError, PayloadError
from headway.core.lease import Lease
from headway.core.policy.document import INTERACTIVE
from headway.core.policy.retry import Raised
from headway.protocol.conversion import leased_task, result_of
from headway.protocol.sessions import AddressRefused, AddressSigner
from headway.protocol.worker import LeasedTask, ResultReport

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def hand_out(leases: Sequence[Lease], addresses: AddressSigner) -> tuple[list[LeasedTask], list[ResultReport]]:
    """Return the tasks to hand out, and reports that end the jobs which cannot be handed out.

    Those are jobs whose arguments this release cannot read, and sessions whose server address was not signed.
    """
    tasks, refused = [], []
    for lease in leases:
        try:
            if lease.rung == INTERACTIVE and (signed := split_server(lease.payload)[1]) is not None:
                await addresses.check(signed)
            parameters = bytes(payload_body(lease.payload))
            _read_object(parameters)
            tasks.append(leased_task(lease, parameters))
        except (AddressRefused, PayloadError, msgspec.DecodeError):
            refused.append(result_of(Raised(_UNREADABLE), lease.job_id, lease.token))
    return tasks, refused


_UNREADABLE = JobError("PayloadError", "its arguments cannot be read by this server", retriable=False)

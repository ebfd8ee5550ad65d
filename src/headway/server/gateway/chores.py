"""The chores that only a server with HTTP workers has."""

from __future__ import annotations

from headway.maintenance.loop import Chore
from headway.security.tokens import Tokens
from headway.server.gateway.revocation import RevocationEnforcer
from headway.server.gateway.service import WorkerGateway
from headway.server.gateway.timeouts import RegistrationPruner, TimeoutEnforcer

TIMEOUTS_EVERY = 2.5  # Seconds; a job may run on for this long after its timeout and the worker's grace.
REVOCATION_EVERY = 1.0  # Seconds; tokens are read as often.
REGISTRATIONS_EVERY = 30.0  # Seconds; half of the time for which a dead worker's registration is kept.
DURATIONS_EVERY = 5.0  # Seconds between exchanges of learned durations with other processes.


def gateway_chores(gateway: WorkerGateway, tokens: Tokens) -> list[Chore]:
    """Build the chores for the workers that are registered over HTTP."""
    store, registry = gateway.store, gateway.registry
    timeouts = TimeoutEnforcer(store, gateway.in_force, registry, recorder=gateway.recorder)
    return [
        Chore("timeouts", TIMEOUTS_EVERY, timeouts),
        Chore("revocation", REVOCATION_EVERY, RevocationEnforcer(gateway, tokens)),
        Chore("registrations", REGISTRATIONS_EVERY, RegistrationPruner(store, registry)),
        Chore("durations", DURATIONS_EVERY, gateway.learn),
    ]

"""The order key: where a job stands in its class. Start-time fair queueing among tenants, by expected time.

In a class whose jobs have no tenants the key is a number of the one sequence: first come, first served.
From the first job with a tenant on, the class is *fair*, and keys are microseconds of virtual time.
"""

from __future__ import annotations


def order_key(clock: int, last: int | None, step_us: int) -> int:
    """Return the place of a tenant's next job.

    ``clock``: the highest key ever taken from the class; ``last``: the highest key of the tenant's jobs that wait or
    run there. A tenant that has none starts at the clock, so no tenant stores up credit, nor keeps a debt.
    """
    return clock if last is None else max(clock, last + step_us)

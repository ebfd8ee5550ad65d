"""The order key: the place of a job in its class. Start-time fair queueing among tenants, by expected run time.

In a class whose jobs have no tenants the key is a number of the one sequence: first come, first served.
From the first job with a tenant on, the class is *fair*, and keys are microseconds of virtual time.
"""

from __future__ import annotations


def order_key(clock: int, last: int | None, step_us: int) -> int:
    """Return the order key of a tenant's next job.

    ``clock``: the highest key ever claimed from the class. ``last``: the highest key of the tenant's jobs that wait or
    run there. A tenant without jobs starts at the clock, so no tenant saves up credit or keeps a debt.
    """
    return clock if last is None else max(clock, last + step_us)

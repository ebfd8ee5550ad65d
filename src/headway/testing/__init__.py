"""Helpers for tests of applications: an app on the memory store, a manual clock, and jobs that run on demand.

With pytest, use the fixture ``headway``, a :class:`Testbed`. Otherwise write ``with Testbed(app) as bed: …``.
"""

from headway.testing.clock import ManualClock
from headway.testing.harness import Drained, Enqueued, Testbed, adrain, assert_enqueued, drain

__all__ = ["Drained", "Enqueued", "ManualClock", "Testbed", "adrain", "assert_enqueued", "drain"]

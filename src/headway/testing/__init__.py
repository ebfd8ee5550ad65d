"""For tests of applications: an app on the memory store, a clock that stands still, and jobs run on demand.

With pytest the fixture ``headway`` is a :class:`Testbed`; without it, ``with Testbed(app) as bed: …``.
"""

from headway.testing.clock import ManualClock
from headway.testing.harness import Drained, Enqueued, Testbed, adrain, assert_enqueued, drain

__all__ = ["Drained", "Enqueued", "ManualClock", "Testbed", "adrain", "assert_enqueued", "drain"]

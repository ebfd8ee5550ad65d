"""Looking ahead: a picture of the store and what was learned, from which any number of estimates are made."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.diagnostics import Standing, Survey
from headway.core.job import State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate, Forecast, spot_of
from headway.estimates.history import Lookup
from headway.stores.base import WAITING_COUNTED, Store


class Foresight:
    """Makes forecasts for one process. What was learned is read once in a while, not for each."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lookup = Lookup(monotonic)

    async def look(self, store: Store, policy: Policy) -> Forecast:
        """Look at everything."""
        return await self._forecast(store, await store.survey(), policy)

    async def estimate(self, store: Store, standing: Standing, policy: Policy) -> Estimate | None:
        """Say when a job will start; None once it has begun or ended."""
        if standing.job.state is not State.QUEUED:
            return None
        forecast = await self._forecast(store, standing.survey, policy)
        return forecast.of(spot_of(standing, forecast.survey))

    async def _forecast(self, store: Store, survey: Survey, policy: Policy) -> Forecast:
        survey = await _counted(store, survey)
        return Forecast(survey, policy, await self._lookup.known(store, survey.now_at))


async def _counted(store: Store, survey: Survey) -> Survey:
    """Count lines that are longer than a picture counts."""
    long = [view for view in survey.snapshot.classes if view.waiting >= WAITING_COUNTED]
    if not long:
        return survey
    lanes = (await store.stats()).lanes
    more: dict[str, int] = {}
    for lane in {view.key.lane for view in long}:
        seen = sum(view.waiting for view in survey.snapshot.classes if view.key.lane == lane)
        beyond = max(0, lanes[lane].waiting - seen) if lane in lanes else 0
        more[lane] = beyond // sum(view.key.lane == lane for view in long)
    classes = tuple(
        view._replace(waiting=view.waiting + more[view.key.lane]) if view.waiting >= WAITING_COUNTED else view
        for view in survey.snapshot.classes
    )
    return survey._replace(snapshot=survey.snapshot._replace(classes=classes))

"""How likely it is that enough jobs have started by a moment, although more may have arrived by then than expected."""

from __future__ import annotations

from math import erfc, exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

NEAR = 1.5  # Standard deviations from the bound within which an earlier start matters: it at most doubles a chance.
LEAST_SKEW = 1e-3  # Below it a distribution counts as normal, because the formula divides by the skewness.
TAIL = 25.0  # Standard deviations from which the tail of a normal distribution is computed as 1 / x.
_NORMAL = NormalDist()


class StartDoubt(NamedTuple):
    """How far a number of starts may be off, in jobs.

    ``variance``: of the number. ``arrivals``: the part of it that arrivals cause. They come in batches, so the number
    is skewed, by the third cumulant ``third``: mostly fewer jobs arrive than on average, and now and then many more.
    """

    variance: float = 0.0
    arrivals: float = 0.0
    third: float = 0.0


def surplus(reach: float, count: float, doubt: StartDoubt, deviations: float) -> float:
    """Return by how many jobs an expected ``reach`` exceeds what makes ``count`` starts likely enough.

    It is 0 where the chance is that of a normal distribution up to ``deviations``: 0 for one half.
    """
    if doubt.variance <= 0:
        return reach - count
    deviation = sqrt(doubt.variance)
    score = (reach - count) / deviation
    skew = doubt.third / (doubt.variance * deviation)
    if skew > LEAST_SKEW:  # The arrivals follow a gamma distribution, in the approximation of Wilson and Hilferty.
        part = 1.0 + score * skew / 2.0
        if part <= 0:  # Too few even if nothing arrives.
            return reach - count
        score = 6.0 / skew * (part ** (1 / 3) - 1.0 + skew * skew / 36.0)
    if abs(score - deviations) < NEAR:
        chance = _NORMAL.cdf(score)
        chance += (1.0 - chance) * doubt.arrivals / doubt.variance * _passed_before(reach, count, deviation)
        score = _NORMAL.inv_cdf(chance)
    return (score - deviations) * deviation


def _passed_before(reach: float, count: float, deviation: float) -> float:
    """Return the chance that the count was reached earlier, although arrivals made the reach fall behind it again.

    This is the chance of a first passage of Brownian motion: a job that has started does not wait again.
    """
    far = (reach + count) / deviation
    drift = 2.0 * reach * count / (deviation * deviation)
    if far > TAIL:
        return exp(drift - far * far / 2.0) / (2.5 * far)
    return exp(drift) * 0.5 * erfc(far / sqrt(2.0))

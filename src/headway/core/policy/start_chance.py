"""How likely it is that enough jobs have started by a moment, although more may have arrived by then than expected."""

from __future__ import annotations

from math import cbrt, erfc, exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

NEAR = 1.5  # Standard deviations from the bound within which an earlier start matters: it at most doubles a chance.
LEAST_SKEW = 1e-3  # Below it a distribution counts as normal, because the formula divides by the skewness.
MOST_SKEW = 3.0  # Beyond it the formula is wrong at the end of the distribution.
TAIL = 25.0  # Standard deviations from which the tail of a normal distribution is computed as 1 / x.
_NORMAL = NormalDist()


class StartDoubt(NamedTuple):
    """How far a number of starts may be off, in jobs: variances, and what skews the number.

    ``starts``: the variance that run times cause, among ``among`` starts in all lanes that have the slots.
    ``arrivals``: the variance that arrivals cause, which go first and come in batches, with their third cumulant
    ``third``. ``common``: the variance that the error of learned run times causes.
    """

    starts: float = 0.0
    among: float = 0.0
    arrivals: float = 0.0
    third: float = 0.0
    common: float = 0.0


def surplus(reach: float, count: float, doubt: StartDoubt, deviations: float) -> float:
    """Return by how many jobs an expected ``reach`` exceeds what makes ``count`` starts likely enough.

    It is 0 where the chance is that of a normal distribution up to ``deviations``: 0 for one half.
    """
    variance = doubt.starts + doubt.arrivals + doubt.common
    if variance <= 0:
        return reach - count
    deviation = sqrt(variance)
    # Starts follow a binomial, Poisson or negative binomial distribution, as their variance has it.
    third = doubt.starts * (2.0 * doubt.starts / doubt.among - 1.0) if doubt.among > 0 else 0.0
    skew = max(-MOST_SKEW, min(MOST_SKEW, (third - doubt.third) / (variance * deviation)))
    score = (reach - count) / deviation
    if abs(skew) > LEAST_SKEW:  # A gamma distribution with this skewness, in the approximation of Wilson and Hilferty.
        part = 1.0 - score * skew / 2.0
        if part <= 0:  # Certain, or too few even if nothing arrives.
            return reach - count
        score = 6.0 / skew * (1.0 - cbrt(part)) - skew / 6.0
    if doubt.arrivals > 0 and abs(score - deviations) < NEAR:
        chance = _NORMAL.cdf(score)
        chance += (1.0 - chance) * doubt.arrivals / variance * _passed_before(reach, count, deviation)
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

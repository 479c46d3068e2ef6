"""Statistics of rounds: medians, quartiles, best, and ratios paired by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Several rounds in four figures.

    Attributes:
        median: the median.
        q25: the lower quartile, interpolated as `numpy.quantile` does.
        q75: the upper quartile.
        best: the smallest or the largest, whichever is better.
    """

    median: float
    q25: float
    q75: float
    best: float


def summarize(values: Sequence[float], best: Callable[[Iterable[float]], float] = min) -> Summary | None:
    """The summary of the values; None of none."""
    if not values:
        return None
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Summary(median=quartiles[1], q25=quartiles[0], q75=quartiles[2], best=best(values))


def paired_ratios(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """`values` by `base`, round by round: what slowed a whole round down falls on both, and cancels out."""
    return [value / base[number] for number, value in values.items() if base.get(number)]

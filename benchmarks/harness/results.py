"""What the rounds of a run come to: summaries and ratios of each entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.contender import Figures, Limit
from benchmarks.harness.runner import Outcome, Track
from benchmarks.harness.summary import Summary, paired_ratios, summarize


@dataclass(frozen=True)
class Result:
    """One entry's figures; None where there are none.

    Attributes:
        track: what became of it.
        seconds: of a round.
        bytes_per_s: delivered bytes.
        samples_per_s: delivered samples.
        first_batch_s: until the first batch was there.
        consume_s: that the consumer took.
        cpu_s: CPU seconds of the process tree in a round.
        peak_pss_bytes: the largest memory of the tree after a round.
        peak_private_bytes: the same, private memory.
        to_reference: its speed by the reference's, paired by round.
        limit: the limit that binds it: the one by which it would take longest.
        to_limit: its speed by what that limit allows, paired by round.
    """

    track: Track
    seconds: Summary | None = None
    bytes_per_s: Summary | None = None
    samples_per_s: Summary | None = None
    first_batch_s: Summary | None = None
    consume_s: Summary | None = None
    cpu_s: Summary | None = None
    peak_pss_bytes: int | None = None
    peak_private_bytes: int | None = None
    to_reference: Summary | None = None
    limit: str | None = None
    to_limit: Summary | None = None


def analyse(outcome: Outcome) -> tuple[Result, ...]:
    """The results of all entries, in their order."""
    limits = [track for track in outcome.limits if _binds(track)]
    base = outcome.track(outcome.reference) if outcome.reference is not None else None
    return tuple(_analyse(track, base, limits) for track in outcome.tracks)


def _binds(track: Track) -> bool:
    return isinstance(track.entry, Limit) and track.entry.binding and track.status == "ok"


def _analyse(track: Track, base: Track | None, limits: Sequence[Track]) -> Result:
    """Figures only of what went well to the end, ratios only of what delivered the reference's content."""
    if track.status not in ("ok", "unchecked") or not track.rounds:
        return Result(track)
    figures = list(track.rounds.values())
    compared = track.status == "ok" and not isinstance(track.entry, Limit)
    limit, to_limit = _hold_against(track, limits) if compared else (None, None)
    return Result(
        track,
        seconds=summarize([each.seconds for each in figures]),
        bytes_per_s=summarize(_rates(figures, "nbytes"), max),
        samples_per_s=summarize(_rates(figures, "samples"), max),
        first_batch_s=summarize([each.first_batch_s for each in figures if each.first_batch_s is not None]),
        consume_s=summarize([each.consume_s for each in figures if each.consume_s is not None]),
        cpu_s=summarize([each.cpu_s for each in figures]),
        peak_pss_bytes=_largest([each.pss_bytes for each in figures]),
        peak_private_bytes=_largest([each.private_bytes for each in figures]),
        to_reference=_to_reference(track, base) if compared else None,
        limit=limit,
        to_limit=to_limit,
    )


def _rates(figures: Sequence[Figures], what: str) -> list[float]:
    return [getattr(each, what) / each.seconds for each in figures if getattr(each, what)]


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _to_reference(track: Track, base: Track | None) -> Summary | None:
    if base is None or base.status != "ok":
        return None
    speed: Callable[[Track], Mapping[int, float]] = lambda one: {n: 1 / f.seconds for n, f in one.rounds.items()}  # noqa: E731
    return summarize(paired_ratios(speed(track), speed(base)), max)


def _hold_against(track: Track, limits: Sequence[Track]) -> tuple[str | None, Summary | None]:
    """The limit that binds a contender, and its ratio to it."""
    held = {limit.entry.name: summarize(_limit_ratios(track, limit), max) for limit in limits}
    known = {name: summary for name, summary in held.items() if summary is not None}
    if not known:
        return None, None
    name = max(known, key=lambda name: known[name].median)
    return name, known[name]


def _limit_ratios(track: Track, limit: Track) -> list[float]:
    """Round by round, the time that the limit needs for what the contender delivered, by the contender's time."""
    assert isinstance(limit.entry, Limit)
    what = "nbytes" if limit.entry.per == "bytes" else "samples"
    rates = {number: getattr(each, what) / each.seconds for number, each in limit.rounds.items()}
    speeds = {number: getattr(each, what) / each.seconds for number, each in track.rounds.items()}
    return paired_ratios(speeds, rates)

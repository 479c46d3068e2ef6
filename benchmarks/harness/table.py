"""The report for people: a table that fits 120 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from benchmarks.harness.contender import Limit
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.report import Report
from benchmarks.harness.results import Result
from benchmarks.harness.runner import Track
from benchmarks.harness.summary import Summary

WIDTH = 120
HOT_FRACTION = 0.99
IDLE_FRACTION = 0.05
"""A contender that uses more of a core than this while others run slows them down."""
IDLE_LEAST_S = 0.1
"""The harness itself needs a few milliseconds a round."""
_GAP = "  "
_NOTHING = "-"

Column = tuple[str, Callable[[Result], str]]


def format_report(report: Report) -> str:
    """The whole report."""
    contenders = [result for result in report.results if not isinstance(result.track.entry, Limit)]
    limits = [result for result in report.results if isinstance(result.track.entry, Limit)]
    parts = [_head(report)]
    if contenders:
        parts.append(_grid(_contender_columns(report), contenders))
    if limits:
        parts.append(_grid(_LIMIT_COLUMNS, limits))
    parts += [_wrap(line) for line in _troubles(report)]
    parts.append(_wrap(_legend(contenders)))
    return "\n\n".join(parts)


def _head(report: Report) -> str:
    settings = report.settings
    state = "unknown" if report.cached is None else f"{report.cached:.0%}"
    lines = [
        f"{report.name}: {report.scenario.title}",
        describe_machine(report.machine),
        f"{report.scenario.data_line}; in the page cache after the last round: {state}",
        f"{settings.rounds} rounds after a warm-up, contenders shuffled in each (seed {settings.seed})"
        + ("; deliveries are digested in each round, which the figures include" if settings.check_every_round else ""),
    ]
    return "\n".join(_wrap(line) for line in lines)


def _wrap(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _grid(columns: Sequence[Column], results: Sequence[Result]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    rows = [[title for title, _ in columns], *([show(result) for _, show in columns] for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return "\n".join(_join(row, widths) for row in rows)


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return _GAP.join(cells).rstrip()


def _contender_columns(report: Report) -> list[Column]:
    limits = sorted({result.limit for result in report.results if result.limit})
    limit = f"x {limits[0]}" if len(limits) == 1 else "x its limit"
    columns: list[Column] = [
        ("contender", lambda result: result.track.entry.name),
        ("GB/s", lambda result: _median(result.bytes_per_s, 1e-9)),
        ("quartiles", lambda result: _quartiles(result.bytes_per_s, 1e-9)),
        ("best", lambda result: _best(result.bytes_per_s, 1e-9)),
        (f"{report.scenario.noun}/s", lambda result: _median(result.samples_per_s, 1, 0)),
        ("s", lambda result: _median(result.seconds, 1)),
        ("first ms", lambda result: _median(result.first_batch_s, 1e3, 1)),
        ("CPU s", lambda result: _median(result.cpu_s, 1)),
        ("MB", lambda result: _megabytes(result.peak_pss_bytes)),
    ]
    if report.scenario.reference is not None:
        columns.append((f"x {report.scenario.reference}", lambda result: _ratio(result, result.to_reference)))
    if limits:
        columns.append((limit, lambda result: _ratio(result, result.to_limit)))
    return columns


_LIMIT_COLUMNS: list[Column] = [
    ("limit", lambda result: result.track.entry.name),
    ("GB/s", lambda result: _median(result.bytes_per_s, 1e-9)),
    ("quartiles", lambda result: _quartiles(result.bytes_per_s, 1e-9)),
    ("best", lambda result: _best(result.bytes_per_s, 1e-9)),
    ("samples/s", lambda result: _median(result.samples_per_s, 1, 0)),
    ("", lambda result: _state(result.track)),
]


def _median(summary: Summary | None, factor: float, digits: int = 2) -> str:
    return _NOTHING if summary is None else f"{summary.median * factor:,.{digits}f}"


def _quartiles(summary: Summary | None, factor: float) -> str:
    return _NOTHING if summary is None else f"{summary.q25 * factor:.2f}-{summary.q75 * factor:.2f}"


def _best(summary: Summary | None, factor: float) -> str:
    return _NOTHING if summary is None else f"{summary.best * factor:.2f}"


def _megabytes(size: int | None) -> str:
    return _NOTHING if size is None else f"{size / 1e6:,.0f}"


def _ratio(result: Result, summary: Summary | None) -> str:
    if summary is None:
        return _NOTHING if result.track.status == "ok" else _state(result.track)
    return f"{summary.median:.2f} ({summary.q25:.2f}-{summary.q75:.2f})"


def _state(track: Track) -> str:
    if track.status == "unavailable":
        return "unknown" if isinstance(track.entry, Limit) else "not here"
    if track.status == "unchecked":
        return "not compared"
    return "" if track.status == "ok" else track.status.upper()


def _troubles(report: Report) -> list[str]:
    """A line for each thing that a reader of the figures has to know."""
    lines = []
    for result in report.results:
        track = result.track
        if track.status != "ok":
            lines.append(f"{track.entry.name}: {_state(track)}: {track.reason}")
        elif isinstance(track.entry, Limit) and track.rounds:
            last = track.rounds[max(track.rounds)].notes
            lines += (
                [f"{track.entry.name}: {', '.join(f'{key}: {value}' for key, value in last.items())}"] if last else []
            )
    if report.scenario.hot and report.cached is not None and report.cached < HOT_FRACTION:
        lines.append(
            f"NOT HOT: only {report.cached:.0%} of the files' pages are in the page cache; take fewer scans, or a"
            " machine with more free memory"
        )
    return lines + _restless(report)


def _restless(report: Report) -> list[str]:
    """Contenders that worked while others were measured."""
    total = sum(figures.seconds for track in report.outcome.tracks for figures in track.rounds.values())
    idle = {
        track.entry.name: sum(figures.idle_cpu_s for figures in track.rounds.values())
        for track in report.outcome.tracks
    }
    return [
        f"{name}: not idle while others ran: {seconds:.2f} CPU s; their figures are too low"
        for name, seconds in idle.items()
        if seconds > max(IDLE_LEAST_S, IDLE_FRACTION * total)
    ]


def _legend(contenders: Sequence[Result]) -> str:
    if not contenders:
        return "GB/s: 1e9 bytes a second; median, quartiles and best of the rounds."
    taken = [result.consume_s.median * 1e3 for result in contenders if result.consume_s is not None]
    cost = (
        f" Of s the consumer, which touches each page of a batch, takes {min(taken):.1f} to {max(taken):.1f} ms."
        if taken
        else ""
    )
    return (
        "GB/s: 1e9 delivered bytes a second; medians of the rounds. s: a round. first: until the first batch is there."
        " CPU, MB: of the process tree in a round, and the largest after one (PSS)."
        f" x: times as fast, paired by round: median (quartiles).{cost}"
    )

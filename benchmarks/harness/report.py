"""All that was measured, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Contender, Limit
from benchmarks.harness.results import Result
from benchmarks.harness.runner import Outcome, Settings
from benchmarks.harness.scenario import Scenario
from fastload import __version__

SCHEMA = "fastload.benchmark/1"


@dataclass(frozen=True)
class Report:
    """A finished run with what it ran on.

    Attributes:
        name: the scenario's name.
        scenario: what was run.
        settings: how it was run.
        outcome: the raw figures.
        results: what they come to.
        machine: facts about the machine.
        cached: the part of the data's pages that was in the page cache after the last round; None: unknown.
        exit_code: 1 when something that was there failed.
    """

    name: str
    scenario: Scenario
    settings: Settings
    outcome: Outcome
    results: Sequence[Result]
    machine: Mapping[str, Any]
    cached: float | None
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "schema": SCHEMA,
            "fastload_version": __version__,
            "scenario": self.name,
            "title": self.scenario.title,
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": dict(self.machine),
            "data": {**self.scenario.data, "hot": self.scenario.hot, "cached_after": self.cached},
            "settings": {**asdict(self.settings), **self.scenario.settings},
            "orders": [list(order) for order in self.outcome.orders],
            "reference": self.outcome.reference,
            "contenders": [_to_json(each) for each in self.results if isinstance(each.track.entry, Contender)],
            "limits": [_to_json(each) for each in self.results if isinstance(each.track.entry, Limit)],
            "exit_code": self.exit_code,
        }

    def write(self, path: Path) -> None:
        """Write the JSON; the file is never there in part."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def _to_json(result: Result) -> dict[str, Any]:
    track = result.track
    summary = asdict(result)
    del summary["track"]
    kind = {"per": track.entry.per, "binding": track.entry.binding} if isinstance(track.entry, Limit) else {}
    return {
        "name": track.entry.name,
        "status": track.status,
        "reason": track.reason or None,
        "traceback": track.traceback or None,
        "target": track.entry.target,
        "options": dict(track.entry.options),
        **kind,
        "content": None if track.content is None else track.content.to_json(),
        "summary": summary,
        "rounds": [_round_to_json(number, figures) for number, figures in sorted(track.rounds.items())],
    }


def _round_to_json(number: int, figures: Any) -> dict[str, Any]:
    return {"round": number, **asdict(figures)}

"""Runs contenders and limits in interleaved rounds, each in a child process that lives through all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.harness.contender import Contender, Entry, Figures, Limit, Turn
from benchmarks.harness.delivery import Content, explain_difference
from benchmarks.harness.guard import ProcessGuard
from benchmarks.harness.process import ChildError, ChildProcess

Say = Callable[[str], None]
Status = Literal["ok", "wrong", "failed", "unavailable", "unchecked"]
"""ok; delivers something else than the reference; raised, died or hung; not installed or not to be known here; cannot
be held against a reference that failed or was left out."""


@dataclass(frozen=True)
class Settings:
    """How a run goes.

    Attributes:
        rounds: timed rounds, beside the warm-up.
        seed: for the order within rounds and the order of samples.
        timeout_s: how long a child may take for one answer.
        check_every_round: whether to digest what is delivered in timed rounds too.
    """

    rounds: int
    seed: int
    timeout_s: float
    check_every_round: bool = False


@dataclass
class Track:
    """What became of one entry.

    Attributes:
        entry: the contender or limit.
        status: how it ended.
        reason: why, when that is not "ok".
        traceback: where in its code, when it raised.
        content: what it delivered in the warm-up.
        rounds: its figures by round, from 1.
    """

    entry: Entry
    status: Status = "ok"
    reason: str = ""
    traceback: str = ""
    content: Content | None = None
    rounds: dict[int, Figures] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it was there and failed; something that is not installed has not."""
        return self.status in ("wrong", "failed")


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        orders: names in the order in which each round ran them.
        tracks: one for each entry.
        reference: name of the contender that others are held against; None where it was not among them.
    """

    orders: tuple[tuple[str, ...], ...]
    tracks: tuple[Track, ...]
    reference: str | None

    def track(self, name: str) -> Track:
        """The track of the entry with this name."""
        return next(track for track in self.tracks if track.entry.name == name)

    @property
    def contenders(self) -> tuple[Track, ...]:
        """The tracks of the contenders."""
        return tuple(track for track in self.tracks if isinstance(track.entry, Contender))

    @property
    def limits(self) -> tuple[Track, ...]:
        """The tracks of the limits."""
        return tuple(track for track in self.tracks if isinstance(track.entry, Limit))


def plan_orders(names: Sequence[str], rounds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """An order of the names for each round: shuffled anew, so that none always runs after the same other."""
    source = random.Random(seed)
    return tuple(tuple(source.sample(names, len(names))) for _ in range(rounds))


def run(entries: Sequence[Entry], reference: str | None, settings: Settings, guard: ProcessGuard, say: Say) -> Outcome:
    """Open all entries, warm them up, compare what they deliver, and run the timed rounds.

    Where the reference is not among the entries, they are run, and compared with nothing.
    """
    runners = [_Runner(Track(entry), settings, guard) for entry in entries]
    orders = plan_orders([entry.name for entry in entries], settings.rounds, settings.seed)
    try:
        for runner in runners:
            say(f"warm-up: {runner.name}")
            runner.open()
            runner.warm_up()
        _compare(runners, reference)
        by_name = {runner.name: runner for runner in runners}
        for number, order in enumerate(orders, 1):
            say(f"round {number} of {settings.rounds}")
            for name in order:
                by_name[name].take_round(number)
        for runner in runners:
            runner.close()
    finally:
        for runner in runners:
            runner.kill()
    known = reference if any(runner.name == reference for runner in runners) else None
    return Outcome(orders, tuple(runner.track for runner in runners), known)


def _compare(runners: Sequence[_Runner], reference: str | None) -> None:
    """Take out of the run what delivers something else than the reference."""
    base = next((runner.track for runner in runners if runner.name == reference), None)
    for runner in runners:
        if runner.track.status != "ok" or not isinstance(runner.track.entry, Contender) or reference is None:
            continue
        if base is None:
            runner.track.status = "unchecked"
            runner.track.reason = f"--only left out the reference, {reference}; name it too for ratios"
        elif base.status != "ok":
            runner.track.status = "unchecked"
            runner.track.reason = f"the reference {reference} gave nothing to compare with"
        else:
            runner.compare(base.content)


class _Runner:
    """Takes one entry through the run; what goes wrong with it ends its child and is kept in its track."""

    def __init__(self, track: Track, settings: Settings, guard: ProcessGuard) -> None:
        self.track = track
        self.name = track.entry.name
        self._settings = settings
        self._guard = guard
        self._child: ChildProcess | None = None

    def open(self) -> None:
        """Start the child and let it open the peer."""
        self._child = ChildProcess(self._guard)
        entry = self.track.entry
        delivery = entry.delivery if isinstance(entry, Contender) else None
        self._ask(
            {
                "target": entry.target,
                "options": dict(entry.options),
                "delivery": None if delivery is None else asdict(delivery),
            }
        )

    def warm_up(self) -> None:
        """One turn that is not timed: caches fill, and what is delivered is digested."""
        figures = self._turn(Turn(self._settings.seed, check=True))
        if figures is not None:
            self.track.content = figures.content

    def compare(self, expected: Content | None) -> None:
        """Hold what the warm-up delivered against what was expected."""
        found = self.track.content
        if expected is not None and found is not None:
            wrong = explain_difference(found, expected)
        else:
            wrong = None if found is expected else "it gave nothing to compare"
        if wrong:
            self._stop("wrong", f"{wrong} (warm-up)")

    def take_round(self, number: int) -> None:
        """One timed turn."""
        figures = self._turn(Turn(self._settings.seed + number, check=self._settings.check_every_round))
        if figures is None:
            return
        wrong = self._explain_change(figures)
        if wrong:
            self._stop("wrong", f"{wrong} (round {number}; compared with its own warm-up)")
        else:
            self.track.rounds[number] = figures

    def close(self) -> None:
        """Let the child end by itself."""
        if self._child is not None:
            self._child.close()

    def kill(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _turn(self, turn: Turn) -> Figures | None:
        answer = self._ask(asdict(turn))
        return None if answer is None else Figures.from_json(answer["figures"])

    def _explain_change(self, figures: Figures) -> str | None:
        """How a round delivered something else than the warm-up; None when it did not."""
        content = self.track.content
        if content is None or not isinstance(self.track.entry, Contender):
            return None
        if figures.content is not None:
            return explain_difference(figures.content, content)
        if (figures.samples, figures.nbytes) == (content.samples, content.nbytes):
            return None
        return (
            f"{figures.samples:,} samples, {figures.nbytes:,} bytes;"
            f" expected {content.samples:,} samples, {content.nbytes:,} bytes"
        )

    def _ask(self, command: dict[str, Any]) -> dict[str, Any] | None:
        """The child's answer; None when it is not there any more, or after this."""
        if self._child is None:
            return None
        try:
            answer = self._child.ask(command, self._settings.timeout_s)
        except ChildError as error:
            self._stop("failed", str(error))
            return None
        if answer["status"] == "ok":
            return answer
        self._stop(answer["status"], answer["reason"], answer.get("traceback", ""))
        return None

    def _stop(self, status: Status, reason: str, traceback: str = "") -> None:
        self.track.status, self.track.reason, self.track.traceback = status, reason, traceback
        self.kill()

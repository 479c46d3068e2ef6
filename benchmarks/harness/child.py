"""The process that one contender or limit lives in: it waits for turns, takes them, and answers.

Commands and answers are lines of JSON on two pipes. It ends when the pipe of commands closes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO, TypeVar

from benchmarks.harness.contender import Figures, Job, Loader, Turn
from benchmarks.harness.delivery import Consumer, Content, Delivery
from benchmarks.harness.errors import Unavailable
from benchmarks.harness.usage import Memory, tree_cpu_s, tree_memory

T = TypeVar("T")
HARNESS = Path(__file__).resolve().parent
REPO = HARNESS.parents[1]
OWN_PACKAGES = ("benchmarks", "fastload", "tests")
"""A module of these that is missing is a mistake, not something to install."""


def main(commands_fd: int, answers_fd: int) -> None:
    """Serve turns until no more come."""
    os.dup2(2, 1)  # what a peer prints must not come between the results
    for fd in (commands_fd, answers_fd):
        os.set_inheritable(fd, False)
    with open(commands_fd, encoding="utf-8") as commands, open(answers_fd, "w", encoding="utf-8") as answers:
        try:
            _serve(commands, answers)
        except BrokenPipeError:  # the parent is gone
            _discard(answers)


def _serve(commands: TextIO, answers: TextIO) -> None:
    order = commands.readline()
    if not order:
        return
    with contextlib.ExitStack() as stack:
        values = json.loads(order)
        peer = values["target"].partition(":")[0]
        answer, meter = _attempt(lambda: _open(values, stack), peer)
        _send(answers, answer)
        if meter is None:
            return
        for line in commands:
            answer, figures = _attempt(functools.partial(meter.take, Turn(**json.loads(line))), peer)
            _send(answers, answer if figures is None else {**answer, "figures": asdict(figures)})


def _attempt(work: Callable[[], T], peer: str) -> tuple[dict[str, Any], T | None]:
    """What the work gives; an answer that says that it did, or why not and where in the peer's module."""
    try:
        return {"status": "ok"}, work()
    except Unavailable as reason:
        return {"status": "unavailable", "reason": str(reason)}, None
    except Exception as error:
        return _describe_failure(error, peer), None


def _send(answers: TextIO, answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _describe_failure(error: Exception, peer: str) -> dict[str, Any]:
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = _place_of(error, peer)
    return {
        "status": "failed",
        "reason": f"{reason} ({place})" if place else reason,
        "traceback": traceback.format_exc(),
    }


def _place_of(error: Exception, peer: str) -> str | None:
    """File and line where it was raised, or passed through, in the peer's module; else in what is not the harness."""
    module = getattr(sys.modules.get(peer), "__file__", None)
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    own = [frame for frame in outside if frame.filename == module]
    frame = next(reversed(own or outside), None)
    return None if frame is None else f"{_shortest(Path(frame.filename))}:{frame.lineno}"


def _is_theirs(file: str) -> bool:
    return not file.startswith("<") and not Path(file).is_relative_to(HARNESS)


def _shortest(file: Path) -> Path:
    return file.relative_to(REPO) if file.is_relative_to(REPO) else file


def _open(order: Mapping[str, Any], stack: contextlib.ExitStack) -> _Meter:
    """What takes the turns of this entry. Raises `Unavailable` when it cannot be measured here."""
    module, function = order["target"].split(":")
    try:
        work = getattr(importlib.import_module(module), function)(**order["options"])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OWN_PACKAGES:
            raise
        raise Unavailable(f"not installed: the Python module {error.name}") from error
    if order["delivery"] is None:
        _check_kind(work, Job, "a Job", order["target"])
        stack.callback(work.finish)
        return _Meter(lambda turn: _run_job(work, turn), work.prepare)
    _check_kind(work, Loader, "an object with epoch(seed)", order["target"])
    delivery = Delivery(tuple(order["delivery"]["fields"]), order["delivery"]["layout"])
    return _Meter(lambda turn: _run_epoch(work, delivery, turn))


def _check_kind(work: Any, kind: type, what: str, target: str) -> None:
    if not isinstance(work, kind):
        raise TypeError(
            f"{target} gave {type(work).__name__}; expected {what}, as benchmarks/harness/contender.py says"
        )


class _Meter:
    """Measures what the turns of this process cost.

    Memory is taken while the last batch is still held, as a training loop holds it.
    """

    def __init__(self, run: Callable[[Turn], dict[str, Any]], prepare: Callable[[], None] = lambda: None) -> None:
        self._run = run
        self._prepare = prepare
        self._cpu_s = tree_cpu_s()

    def take(self, turn: Turn) -> Figures:
        """Take a turn."""
        before_s = tree_cpu_s()
        idle_s = before_s - self._cpu_s
        gc.collect()
        self._prepare()
        start_s = tree_cpu_s()
        values = self._run(turn)
        self._cpu_s = tree_cpu_s()
        memory = values.pop("memory")
        end_s, self._cpu_s = self._cpu_s, tree_cpu_s()
        return Figures(
            **values,
            cpu_s=end_s - start_s,
            idle_cpu_s=idle_s,
            pss_bytes=memory.pss,
            private_bytes=memory.private,
        )


def _run_epoch(loader: Loader, delivery: Delivery, turn: Turn) -> dict[str, Any]:
    consumer = Consumer(delivery, check=turn.check)
    first = None
    start = time.perf_counter()
    for batch in loader.epoch(turn.seed):
        if first is None:
            first = time.perf_counter() - start
        consumer.take(batch)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "samples": consumer.samples,
        "nbytes": consumer.nbytes,
        "first_batch_s": first,
        "consume_s": consumer.seconds,
        "content": consumer.content(),
        "memory": tree_memory(),
        "notes": {},
    }


def _run_job(job: Job, turn: Turn) -> dict[str, Any]:
    start = time.perf_counter()
    amount = job.run()
    seconds = time.perf_counter() - start
    content: Content | None = job.content() if turn.check else None
    return {
        "seconds": seconds,
        "samples": amount.samples,
        "nbytes": amount.nbytes,
        "first_batch_s": None,
        "consume_s": None,
        "content": content,
        "memory": Memory(None, None),
        "notes": dict(job.notes()),
    }


def _discard(stream: TextIO) -> None:
    """Let what the stream still holds go to /dev/null: closing it would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""The parent's hold on the process of one contender: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.guard import ProcessGuard

REPO = Path(__file__).resolve().parents[2]
_START = """\
import sys
sys.path[0] = sys.argv.pop(1)
from benchmarks.harness.child import main
main(*map(int, sys.argv[1:]))
"""
"""Not `-m`: that would put the current folder first on the path, whatever modules lie there."""
LOOK_EVERY_S = 0.25
"""A worker of a dead child may hold its pipe open, so that its end does not show there."""
POLITE_END_S = 10.0
"""Time for a child to stop its workers by itself."""
POLL_S = 0.01
_READ_BYTES = 1 << 16

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""Threads of OpenMP that spin while they wait take cores from whoever else runs: where both cores were in use, an epoch
with `torch.cat` took 0.5 to 4.6 s instead of 0.1."""


class ChildError(Exception):
    """A child died or did not answer in time; the message says which."""


class ChildProcess:
    """One child with its two pipes and what it writes to stderr; a `ProcessGuard` owns the process itself."""

    def __init__(self, guard: ProcessGuard) -> None:
        self._guard = guard
        self._rest = b""
        their_commands, our_commands = os.pipe()
        our_answers, their_answers = os.pipe()
        self._files = contextlib.ExitStack()
        hold = self._files.enter_context
        self._commands = hold(open(our_commands, "wb", buffering=0))  # noqa: SIM115
        self._answers = hold(open(our_answers, "rb", buffering=0))  # noqa: SIM115
        self._messages: IO[bytes] = hold(tempfile.TemporaryFile())  # noqa: SIM115
        try:
            self._process = guard.start(
                [sys.executable, "-c", _START, str(REPO), str(their_commands), str(their_answers)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._messages,
                env=_environment(), pass_fds=(their_commands, their_answers),
            )  # fmt: skip
        except BaseException:
            self._files.close()
            raise
        finally:
            os.close(their_commands)
            os.close(their_answers)

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises `ChildError`."""
        try:
            self._commands.write((json.dumps(command) + "\n").encode())
        except BrokenPipeError:
            raise ChildError(self._describe_end()) from None
        answer: dict[str, Any] = json.loads(self._read_line(timeout_s))
        return answer

    def close(self) -> None:
        """Let it end by itself, for a while, then end it and all that it started."""
        self._commands.close()
        self._await_end()
        self.kill()

    def kill(self) -> None:
        """End it and all that it started; nothing when that was done before."""
        self._guard.end(self._process)
        self._files.close()

    def _read_line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ended = self._has_ended()  # asked before reading: what it wrote just before its end counts
            left = deadline - time.monotonic()
            if self._is_readable(0 if ended else left):
                data = self._answers.read(_READ_BYTES)
                self._rest += data
                ended = not data
            if ended:
                raise ChildError(self._describe_end())
            if left <= 0:
                raise ChildError(f"no answer within {timeout_s:g} s (--timeout){self._last_words()}")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _is_readable(self, timeout_s: float) -> bool:
        return bool(select.select([self._answers], [], [], max(0.0, min(LOOK_EVERY_S, timeout_s)))[0])

    def _has_ended(self) -> bool:
        """Whether it has ended; it is not waited for, so that its number stays its own until `ProcessGuard.end`."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _await_end(self) -> None:
        """Give it time to end by itself."""
        deadline = time.monotonic() + POLITE_END_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _describe_end(self) -> str:
        self._await_end()  # its pipe may close first
        self._guard.end(self._process)
        code = self._process.returncode
        if code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"its process was ended by signal {-code}, {signal.Signals(-code).name}{hint}{self._last_words()}"
        return f"its process ended with exit code {code}{self._last_words()}"

    def _last_words(self) -> str:
        """The last line that it wrote to stderr."""
        self._messages.seek(0)
        lines = self._messages.read().decode("utf-8", "replace").strip().splitlines()
        return f"; its last words: {lines[-1].strip()}" if lines else ""


def _environment() -> dict[str, str]:
    return {**ENVIRONMENT, **os.environ}  # what the user set stays

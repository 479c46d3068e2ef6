"""Ends processes with all that they started, also when the one that started them is killed.

Run as a script this is the watch: a process of its own whose standard input closes when its parent ends,
however that came about. It then ends what is still registered with it. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

TOKEN_NAME = "FASTLOAD_BENCHMARK_PROCESS"
"""An environment variable that every descendant inherits, in whatever session it is and whoever its parent became."""


class ProcessGuard:
    """Starts processes and owns them: on leaving, none of them nor of their descendants is left."""

    def __enter__(self) -> ProcessGuard:
        self._living: dict[str, subprocess.Popen[Any]] = {}
        # A session of its own: Ctrl-C in the terminal must not end the watch before its parent.
        self._watch = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(__file__)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in list(self._living.values()):
            self.end(process)
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate()

    def start(
        self, command: Sequence[str], env: Mapping[str, str] = os.environ, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process that ends with this guard; options are those of `subprocess.Popen`."""
        token = uuid.uuid4().hex
        self._tell(token, 0)  # before it is there: between the two this process may be killed
        process = subprocess.Popen(command, env={**env, TOKEN_NAME: token}, start_new_session=True, **options)
        self._living[token] = process
        self._tell(token, process.pid)
        return process

    def end(self, process: subprocess.Popen[Any]) -> None:
        """End a process and all that it started; nothing when that was done before."""
        for token in [token for token, other in self._living.items() if other is process]:
            end_tree(process.pid, token)
            process.wait()
            self._tell(token, -1)
            del self._living[token]

    def _tell(self, token: str, pid: int) -> None:
        assert self._watch.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # someone killed the watch: a net less, the run goes on
            self._watch.stdin.write(f"{token} {pid}\n".encode())
            self._watch.stdin.flush()


def end_tree(pid: int, token: str) -> None:
    """Kill the process group that `pid` leads, and every process whose environment has the token.

    `pid` must not have been waited for yet, or be 0: its number may be another's by then.
    """
    if pid > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    mark = f"{TOKEN_NAME}={token}".encode()
    killed: set[int] = set()
    # Again until no new one turns up: one may have forked while the list was read.
    while found := {number for number in _processes() if mark in _environment(number)} - killed:
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        killed |= found


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Its environment as it started; nothing of a zombie, a kernel thread or another user's process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def watch() -> None:
    """Keep the list of living processes until the parent ends, then end them."""
    living: dict[str, int] = {}
    for line in sys.stdin:
        token, pid = line.split()
        living[token] = int(pid)
        if int(pid) < 0:
            del living[token]
    for token, number in living.items():
        end_tree(number, token)


if __name__ == "__main__":
    watch()

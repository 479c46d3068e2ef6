"""Standard output and standard error, whatever they are: closed, full, a pipe without a reader, ASCII only.

stdout carries results: when it takes no more, that is an error. stderr carries messages: when it takes no
more, there is nobody left to tell.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from fastload.units import printable

_STANDARD_FDS = (0, 1, 2)


class OutputError(Exception):
    """Standard output takes no more; `__cause__` is the system's error."""


@contextlib.contextmanager
def open_streams() -> Iterator[None]:
    """Let closed standard streams lead to /dev/null for as long as this lasts; their descriptors for good.

    A descriptor left free would be taken by the next file that is opened, and what any library prints would go
    into that file.
    """
    for fd in _STANDARD_FDS:
        _fill(fd)
    closed = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    with contextlib.ExitStack() as stack:
        for name in closed:
            stack.callback(setattr, sys, name, None)
            setattr(sys, name, stack.enter_context(open(os.devnull, "w", encoding="utf-8")))
        yield


def print_out(text: str, end: str = "\n") -> None:
    """A result, on stdout, at once.

    Raises:
        OutputError: the disk is full, or the reader of a pipe went away.
    """
    try:
        _print(text, end, sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise OutputError(error.strerror or str(error)) from error


def print_lines(lines: Iterable[str]) -> None:
    """Results for other programs, one a line, on stdout: the bytes of non-UTF-8 file names as they are.

    Raises:
        OutputError: as `print_out`.
    """
    try:
        _write_lines(list(lines), sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise OutputError(error.strerror or str(error)) from error


def print_err(text: str, end: str = "\n") -> None:
    """A message, on stderr, at once; dropped when stderr takes no more."""
    try:
        _print(text, end, sys.stderr)
    except OSError:
        _discard(sys.stderr)


def _print(text: str, end: str, stream: TextIO) -> None:
    print(printable(text, getattr(stream, "encoding", None) or "utf-8"), end=end, file=stream, flush=True)


def _write_lines(lines: list[str], stream: TextIO) -> None:
    binary = getattr(stream, "buffer", None)
    if binary is None:  # a stream of Python's own, of text only
        _print("\n".join(lines), "\n", stream)
        return
    stream.flush()
    rest = memoryview(b"".join(_line_bytes(line, stream.encoding) for line in lines))
    while rest:  # with `python -u` a write may take a part only
        rest = rest[binary.write(rest) :]
    binary.flush()


def _line_bytes(line: str, encoding: str) -> bytes:
    try:
        return f"{line}\n".encode(encoding, "surrogateescape")
    except UnicodeEncodeError:  # characters that the encoding lacks
        return f"{printable(line, encoding)}\n".encode(encoding)


def _fill(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: fd itself


def _discard(stream: TextIO) -> None:
    """Let what the stream still holds go to /dev/null: the interpreter flushes it at exit, and would fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stream of Python's own has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)

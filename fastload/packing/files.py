"""The files of a source as a pack looks at them: size, bytes, or the problem with them."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from fastload.errors import FormatError
from fastload.formats.sniff import HEAD_BYTES
from fastload.oserrors import raise_if_exhausted
from fastload.regular import open_regular, read_regular
from fastload.schema import Problem


def file_size(root: Path, path: str, sample: str | None) -> int | Problem:
    """Size of a regular file that can be read, or what is wrong with it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    file = root / path
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(path, sample, None, "not a regular file", "a file with data", "remove it", kind="unreadable")
        if not os.access(file, os.R_OK):
            open_regular(file).close()  # says why
    except OSError as error:
        return _unreadable(path, sample, error)
    return status.st_size


def read_sized(root: Path, path: str, size: int, sample: str | None) -> bytes | Problem:
    """The bytes of a file that had this size, or what is wrong with it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    try:
        data = read_regular(root / path)
    except OSError as error:
        return _unreadable(path, sample, error)
    if len(data) != size:
        return Problem(
            path, sample, None, f"{len(data):,} bytes, {size:,} when packing began", "a file that does not change",
            "wait until nothing writes to the source, then pack again", kind="changed",
        )  # fmt: skip
    return data


def read_head(root: Path, path: str) -> bytes:
    """A file's first bytes, to guess what it is; none where they cannot be read.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    try:
        with open_regular(root / path) as file:
            return file.read(HEAD_BYTES) or b""
    except OSError as error:
        raise_if_exhausted(error, path)
        return b""


def located(error: FormatError, path: str, sample: str) -> list[Problem]:
    """The problems of a format, which knows no paths, with path and sample."""
    if not error.problems:
        return [Problem(path, sample, None, str(error), "", "", kind="format")]
    return [replace(problem, path=path, sample=sample) for problem in error.problems]


def _unreadable(path: str, sample: str | None, error: OSError) -> Problem:
    raise_if_exhausted(error, path)
    found = f"cannot be read ({error.strerror or error})"
    return Problem(path, sample, None, found, "a readable file", "mend or remove it", kind="unreadable")

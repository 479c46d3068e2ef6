"""Opening files by name: a pipe, device or folder under the name of a file is refused, never waited for."""

from __future__ import annotations

import errno
import io
import os
import stat


class NotRegularError(OSError):
    """A pipe, socket or device is there."""


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """The file, open for unbuffered reading. Raises `OSError`, for what is no regular file too."""
    return io.FileIO(os.fspath(path), "r", opener=lambda name, _: open_descriptor(name))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The whole file. Raises `OSError`, for what is no regular file too."""
    with open_regular(path) as file:
        return file.readall()


def open_descriptor(path: str | os.PathLike[str]) -> int:
    """A descriptor to read the file. Raises `OSError`, for what is no regular file too."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer for ever. On regular files it does nothing.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_regular(os.fspath(path), os.fstat(fd).st_mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_regular(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise NotRegularError(errno.EINVAL, "not a regular file", path)

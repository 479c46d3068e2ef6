"""Reading files that may be missing, exchanged, damaged or cut at any moment: plain positional reads only.

Nothing is mapped: a mapped file that is cut short ends the process with a bus error at the next touch, a read
of it is an error that can be explained.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from fastload.errors import CorruptError, DatasetError
from fastload.oserrors import raise_if_exhausted


class OpenFile:
    """An open regular file, closed when the last reference to it goes.

    Raises:
        CorruptError: something else than a regular file is there (a FIFO is not waited for).
        OSError: it cannot be opened.
    """

    __slots__ = ("fd",)

    def __init__(self, path: str | Path) -> None:
        self.fd = -1
        # Without O_NONBLOCK, opening a FIFO waits for a writer for ever. On regular files it does nothing.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            name = Path(path).name
            raise CorruptError(f"{path}: not a regular file; copy the dataset anew, or pack it again", shard=name)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def size(self) -> int:
        """The file's size now, in bytes."""
        return os.fstat(self.fd).st_size


def open_sized(path: Path, nbytes: int) -> OpenFile:
    """A file whose size the manifest says.

    Raises:
        CorruptError: missing, of another size, or no regular file.
        ResourceError: no descriptor is free.
    """
    try:
        file = OpenFile(path)
    except FileNotFoundError as error:
        raise CorruptError(f"{path}: missing; copy the dataset anew, or pack it again", shard=path.name) from error
    except OSError as error:
        raise_if_exhausted(error, path)
        raise
    if file.size != nbytes:
        raise CorruptError(
            f"{path}: {file.size:,} bytes; expected {nbytes:,} as dataset.json says: cut short or exchanged;"
            " copy the dataset anew, or pack it again",
            shard=path.name,
        )
    return file


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Up to `nbytes` bytes at `offset`; fewer only where the file ends.

    One system call gives at most 2 GiB - 4 kB, so larger pieces take several.
    """
    data = os.pread(fd, nbytes, offset)
    if len(data) == nbytes or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < nbytes and (data := os.pread(fd, nbytes - done, offset + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def explain_read_error(
    error: OSError, path: str | Path, what: str, error_type: Callable[[str], Exception] = DatasetError
) -> Exception:
    """The error for a read that the system refused: names the file and what was read of it."""
    raise_if_exhausted(error, path)
    return error_type(
        f"{path}: {what} cannot be read ({error.strerror or error}); the disk, or the network behind it, is in trouble:"
        " see the system's log, then copy the dataset anew if need be"
    )

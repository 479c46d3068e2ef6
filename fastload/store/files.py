"""Reading files that may be missing, exchanged, damaged or cut at any moment: plain positional reads only.

Nothing is mapped: a mapped file that is cut short ends the process with a bus error at the next touch, a read
of it is an error that can be explained.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from fastload.errors import CorruptError, DatasetError
from fastload.oserrors import raise_if_exhausted
from fastload.regular import NotRegularError, open_descriptor
from fastload.store.advice import advise


class OpenFile:
    """An open regular file, closed when the last reference to it goes.

    Raises:
        CorruptError: something else than a regular file is there (a FIFO is not waited for).
        OSError: it cannot be opened.
    """

    __slots__ = ("fd",)

    def __init__(self, path: str | Path) -> None:
        self.fd = -1
        try:
            self.fd = open_descriptor(path)
        except (NotRegularError, IsADirectoryError) as error:
            raise CorruptError(f"{path}: not a regular file; {advise(Path(path))}", shard=Path(path).name) from error

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
        raise CorruptError(f"{path}: missing; {advise(path)}", shard=path.name) from error
    except OSError as error:
        raise_if_exhausted(error, path)
        raise
    if file.size != nbytes:
        raise CorruptError(
            f"{path}: {file.size:,} bytes; expected {nbytes:,} as dataset.json says: cut short or exchanged;"
            f" {advise(path)}",
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


BLOCK_BYTES = 1 << 20
"""Index and names are verified in blocks of this size, each when it is first touched: 0.1 ms."""


@dataclass(frozen=True)
class FileEntry:
    """A file of the dataset: path relative to its folder, size, xxh3-128 of its bytes (hexadecimal)."""

    file: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class BlockEntry(FileEntry):
    """A file that is read in pieces: also the xxh3-64 of each of its blocks of 1 MiB (hexadecimal)."""

    blocks: tuple[str, ...]


class CheckedFile:
    """A file of known size and digests, read in pieces; a block's digest is verified when it is first touched.

    Raises:
        CorruptError: missing or of another size; at a read: damaged, exchanged, or cut short meanwhile.
    """

    def __init__(self, root: Path, entry: BlockEntry) -> None:
        self.path = root / entry.file
        self.nbytes = entry.bytes
        self._blocks = entry.blocks
        # The file and which of its blocks are verified, exchanged as one: no block of another file counts as verified.
        self._opened: tuple[OpenFile, bytearray] = open_sized(self.path, entry.bytes), bytearray(len(entry.blocks))

    def read(self, nbytes: int, offset: int) -> bytes:
        """Exactly `nbytes` bytes at `offset`, which lie inside the file."""
        opened = self._opened
        try:
            return self._read_checked(*opened, nbytes, offset)
        except CorruptError:
            file = self._replaced(opened[0])
            if file is None:
                raise
        self._opened = opened = file, bytearray(len(self._blocks))
        return self._read_checked(*opened, nbytes, offset)

    def _replaced(self, file: OpenFile) -> OpenFile | None:
        """The file that lies there now, where it is another one: repaired, or copied anew."""
        try:
            there = open_sized(self.path, self.nbytes)
            return None if os.path.samestat(os.fstat(there.fd), os.fstat(file.fd)) else there
        except (DatasetError, OSError):
            return None

    def _read_checked(self, file: OpenFile, verified: bytearray, nbytes: int, offset: int) -> bytes:
        first, last = offset // BLOCK_BYTES, (offset + nbytes - 1) // BLOCK_BYTES
        if nbytes <= 0 or verified.count(1, first, last + 1) == last + 1 - first:
            return self._read(file, nbytes, offset)
        start = first * BLOCK_BYTES
        data = self._read(file, min((last + 1) * BLOCK_BYTES, self.nbytes) - start, start)
        for number in range(first, last + 1):
            block = data[number * BLOCK_BYTES - start : (number + 1) * BLOCK_BYTES - start]
            if xxhash.xxh3_64_hexdigest(block) != self._blocks[number]:
                raise self.damaged(f"bytes {number * BLOCK_BYTES:,} on are not those that were written")
            verified[number] = 1
        return data[offset - start : offset - start + nbytes]

    def damaged(self, found: str) -> CorruptError:
        """The error for something that is wrong with this file."""
        return CorruptError(
            f"{self.path}: {found}; damaged, exchanged or cut short; {advise(self.path)}", shard=self.path.name
        )

    def _read(self, file: OpenFile, nbytes: int, offset: int) -> bytes:
        try:
            data = read_at(file.fd, nbytes, offset)
        except OSError as error:
            raise explain_read_error(error, self.path, f"{nbytes:,} bytes") from error
        if len(data) != nbytes:
            raise self.damaged(f"nothing at byte {offset + len(data):,} and behind it")
        return data


def describe_blocks(root: Path, file: str) -> BlockEntry:
    """Size and digests of a file."""
    return describe_chunks(file, _read_blocks(OpenFile(root / file)))


def _read_blocks(opened: OpenFile) -> Iterator[bytes]:
    position = 0
    while data := read_at(opened.fd, BLOCK_BYTES, position):
        yield data
        position += len(data)


def describe_chunks(file: str, chunks: Iterable[bytes | memoryview]) -> BlockEntry:
    """Size and digests of a file with these bytes."""
    whole = xxhash.xxh3_128()
    block = xxhash.xxh3_64()
    blocks: list[str] = []
    size = 0
    for chunk in chunks:
        rest = memoryview(chunk).cast("B")
        whole.update(rest)
        while len(rest):
            part = rest[: BLOCK_BYTES - size % BLOCK_BYTES]
            block.update(part)
            rest = rest[len(part) :]
            size += len(part)
            if size % BLOCK_BYTES == 0:
                blocks.append(block.hexdigest())
                block.reset()
    if size % BLOCK_BYTES:
        blocks.append(block.hexdigest())
    return BlockEntry(file, size, whole.hexdigest(), tuple(blocks))


def explain_read_error(error: OSError, path: str | Path, what: str) -> DatasetError:
    """The error for a read that the system refused: names the file and what was read of it."""
    raise_if_exhausted(error, path)
    error.filename = error.filename or os.fspath(path)  # positional reads name none
    return DatasetError(
        f"{path}: {what} cannot be read ({error.strerror or error}); the disk, or the network behind it, is in trouble:"
        " see the system's log, then copy the dataset anew if need be"
    )

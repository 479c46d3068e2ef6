"""One-dimensional `.npy` files whose form is known beforehand: written, and read row by row.

The header (numpy's format version 3.0, whose text is UTF-8: `numpy.lib.format`) follows from dtype and length,
so what is read is held against what it must be; nothing in the file is interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.store.files import BlockEntry, CheckedFile

_MAGIC = b"\x93NUMPY\x03\x00"
_ALIGNMENT = 64
_BLOCK_ROWS = 4096
"""Rows that are read at once when many are asked for: some 200 kB."""


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The bytes before the values of an array of shape (length,)."""
    description = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': ({length},), }}".encode()
    size = len(_MAGIC) + 4 + len(text) + 1
    padded = text + b" " * (-size % _ALIGNMENT) + b"\n"
    return _MAGIC + len(padded).to_bytes(4, "little") + padded


class RowFile:
    """The rows of a `.npy` file of shape (length,), read as they are asked for.

    Raises:
        CorruptError: missing, of another size than the manifest says, of another form; at a read: damaged, or
            cut short meanwhile.
    """

    def __init__(self, root: Path, entry: BlockEntry, dtype: np.dtype[Any], length: int) -> None:
        self.dtype = dtype
        self._length = length
        self._file = CheckedFile(root, entry)
        header = npy_header(dtype, length)
        self._start = len(header)
        if entry.bytes != len(header) + length * dtype.itemsize or self._file.read(len(header), 0) != header:
            raise self._file.damaged(f"its first bytes are not those of a .npy file of {length} values of {dtype}")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Any:
        return self.read(number, number + 1)[0]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop), (stop - start,). Raises `IndexError` outside the file's rows."""
        if not 0 <= start <= stop <= self._length:
            raise IndexError(f"rows {start} to {stop} of {self._length} in {self._file.path}")
        size = self.dtype.itemsize
        return np.frombuffer(self._file.read((stop - start) * size, self._start + start * size), self.dtype)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """The rows with these numbers, (n,), in this order."""
        found = np.empty(len(numbers), self.dtype)
        blocks = numbers // _BLOCK_ROWS
        order = np.argsort(blocks, kind="stable")
        edges = np.flatnonzero(np.diff(blocks[order])) + 1
        for part in np.split(order, edges) if len(order) else []:
            start = int(blocks[part[0]]) * _BLOCK_ROWS
            rows = self.read(start, min(start + _BLOCK_ROWS, self._length))
            found[part] = rows[numbers[part] - start]
        return found

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Rows [start, stop) in blocks, so that a large file never lies in memory as a whole."""
        for first in range(start, stop, _BLOCK_ROWS * 16):
            yield self.read(first, min(first + _BLOCK_ROWS * 16, stop))

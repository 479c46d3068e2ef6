"""The samples' names: compact, looked up without a Python object a name.

`names.bin` holds all names' bytes one after the other in the samples' order; `names.npy` is a
one-dimensional u8 array of n + 1 positions: name i is `names.bin[starts[i]:starts[i + 1]]`. Within a split
the names ascend (as bytes), so a name is found by bisection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fastload.store.files import BlockEntry, CheckedFile
from fastload.store.npy import RowFile, npy_header

NAMES_FILE = "names.bin"
STARTS_FILE = "names.npy"
STARTS_DTYPE = np.dtype("<u8")
Range = tuple[int, int]


class Names:
    """All samples' names, read from their files as they are asked for.

    Raises:
        CorruptError: when a name is read, positions that cannot be right, or a file cut short meanwhile.
    """

    def __init__(self, data: CheckedFile, starts: RowFile) -> None:
        self._data = data
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def raw(self, number: int) -> bytes:
        """The bytes of name `number`. Raises `IndexError` when there is none."""
        start, stop = self._starts.read(number, number + 2).tolist()
        if not start <= stop <= self._data.nbytes:
            raise self._data.damaged(f"name {number} from {start} to {stop} of {self._data.nbytes}")
        return self._data.read(stop - start, start)

    def __getitem__(self, number: int) -> str:
        return self.raw(number).decode("utf-8", "surrogateescape")

    def read(self, start: int, stop: int) -> list[str]:
        """Names [start, stop), read in one piece. Raises `IndexError` outside the names."""
        starts = self._starts.read(start, stop + 1)
        first, last = int(starts[0]), int(starts[-1])
        if (starts[1:] < starts[:-1]).any() or last > self._data.nbytes:
            raise self._data.damaged(f"names {start} to {stop} from {first} to {last} of {self._data.nbytes}")
        data = self._data.read(last - first, first)
        ends = itertools.pairwise((starts - starts[0]).tolist())
        return [data[begin:end].decode("utf-8", "surrogateescape") for begin, end in ends]

    def find(self, name: str, ranges: Sequence[Range]) -> int | None:
        """The number of the sample called `name` within [start, stop) ranges that ascend; None without one."""
        wanted = name.encode("utf-8", "surrogateescape")
        for start, stop in ranges:
            number = self._bisect(wanted, start, stop)
            if number < stop and self.raw(number) == wanted:
                return number
        return None

    def _bisect(self, wanted: bytes, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if self.raw(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low


def names_chunks(names: Iterable[bytes], total: int) -> tuple[list[bytes], list[bytes | memoryview]]:
    """The bytes of `names.bin` and of `names.npy`, for `total` names."""
    data = list(names)
    starts = np.zeros(total + 1, STARTS_DTYPE)
    np.cumsum([len(name) for name in data], out=starts[1:], dtype=STARTS_DTYPE)
    return data, [npy_header(starts.dtype, total + 1), starts.data.cast("B")]


def open_names(root: Path, samples: int, data: BlockEntry, starts: BlockEntry) -> Names:
    """The names of a dataset of `samples` samples.

    Raises:
        CorruptError: a file is missing or not as the manifest says.
    """
    return Names(CheckedFile(root, data), RowFile(root, starts, STARTS_DTYPE, samples + 1))


def starts_bytes_of(samples: int) -> int:
    """The size of `names.npy`."""
    return len(npy_header(STARTS_DTYPE, samples + 1)) + (samples + 1) * STARTS_DTYPE.itemsize

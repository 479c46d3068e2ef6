"""What a format is: one file's bytes as arrays and back, with the checks that tell a wrong file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Parts = Mapping[str, NDArray[np.generic]]
"""The arrays that a file holds, by name: {"points": ...} or {"semantic": ..., "instance": ...}."""
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Doubt:
    """A reason to think that a file that can be read is not what it should be."""

    found: str
    expected: str
    fix: str


@dataclass(frozen=True)
class Inspection:
    """What looking at a file's values gave.

    Attributes:
        doubts: reasons to refuse the file unless packing is forced.
        nonfinite: how many values are NaN or infinite; they are packed as they are and reported.
    """

    doubts: tuple[Doubt, ...] = ()
    nonfinite: int = 0


class Format(Protocol):
    """One kind of file. All methods are pure; the errors that they raise name no path (callers add it)."""

    @property
    def name(self) -> str:
        """The word that records and manifests keep; never changed once released."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the arrays that `decode` gives."""

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row (point) in the file; None where rows have no fixed size."""

    def rows(self, size_bytes: int, head: Buffer = b"") -> int | None:
        """How many rows (points) a file of this size holds; None where the size does not tell.

        Raises `FormatError` when no whole number of rows has this size; `head`, the file's first bytes, then
        helps to say what the file really is.
        """

    def decode(self, data: Buffer) -> dict[str, NDArray[np.generic]]:
        """The file's arrays, little-endian, sharing memory with `data` where they can.

        Raises `FormatError` when the bytes are not of this format.
        """

    def encode(self, parts: Parts) -> bytes:
        """The file's bytes: `encode(decode(data)) == data` for every `data` that `decode` accepts."""

    def inspect(self, parts: Parts) -> Inspection:
        """Whether the values look like what they should be."""

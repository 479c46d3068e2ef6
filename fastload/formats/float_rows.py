"""Files of float32 rows without a header: one row a point, little-endian, columns by convention only."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastload.formats.base import Buffer, Doubt, Inspection, Parts
from fastload.formats.plausible import inspect_points
from fastload.formats.rows import VALUE_BYTES, Row, count_raw_rows, count_rows, refusal

POINTS = "points"
FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class FloatRows:
    """The format of a file of (N, C) float32 values.

    Attributes:
        name: the format's name.
        columns: names of the C columns; the first three are x, y, z in metres, the fourth an intensity.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """`("points",)`."""
        return (POINTS,)

    @functools.cached_property
    def row(self) -> Row:
        """One point, in bytes and words."""
        count = len(self.columns)
        return Row(count * VALUE_BYTES, "point", f"{', '.join(self.columns)} as float32", count)

    @property
    def row_bytes(self) -> int:
        """Bytes of one point."""
        return self.row.nbytes

    def rows(self, size_bytes: int, head: Buffer = b"") -> int:
        """How many points a file of this size holds. Raises `FormatError` where it is no whole number."""
        return count_rows(size_bytes, self.row, bytes(head))

    def decode(self, data: Buffer) -> dict[str, NDArray[np.generic]]:
        """`points`: (N, C) float32, sharing memory with `data`. Raises `FormatError` for other files."""
        count = count_raw_rows(data, self.row)
        return {POINTS: np.frombuffer(data, FLOAT32).reshape(count, len(self.columns))}

    def encode(self, parts: Parts) -> bytes:
        """The file's bytes. Raises `FormatError` unless `points` is (N, C) float32 with N > 0."""
        points = parts[POINTS]
        if points.dtype != np.float32 or points.ndim != 2 or points.shape[1] != len(self.columns) or not len(points):
            found = f"points of shape {points.shape}, {points.dtype}"
            expected = f"shape (N, {len(self.columns)}), float32, N > 0"
            raise refusal(Doubt(found, expected, "convert the array first"), "shape")
        return points.astype(FLOAT32, copy=False).tobytes()

    def inspect(self, parts: Parts) -> Inspection:
        """Whether the values look like x, y, z, intensity of a LiDAR (0.1-0.2 ms for 123,000 points)."""
        return inspect_points(np.ascontiguousarray(parts[POINTS], FLOAT32))

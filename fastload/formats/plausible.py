"""Whether float32 rows look like points of a LiDAR, and if not, what they are more likely to be.

Sizes do not tell: a scan of five columns is often a whole number of four-column rows too. Values do: read
with the wrong column count, a third or more of the "intensity" is negative (in scans read rightly none is), a
point has nothing to do with the one before it, and time stamps turn up as coordinates. A negative intensity
alone proves nothing (somebody may have normalised it), so it is a doubt only when another reading is clearly
better.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastload.formats.base import Doubt, Inspection
from fastload.formats.rows import COLUMNS_IN_USE

HUGE_M = 1e5
"""No LiDAR reaches 100 km; float32 holds such coordinates to 8 mm only."""
TINY = 1e-30
"""Integers and random bits read as float32 are mostly smaller, distances never."""
SMALL = 1e-6
NEGATIVE_SHARE = 0.03
CLEAN_SHARE = 0.005
"""Negative intensities in real scans: none read rightly, 40-54% when five columns are read as four."""
SMOOTHER = 0.5
"""A better reading is at most so rough: real scans measure 0.03-0.3 read rightly, 0.8-1.1 wrongly."""
SIMILAR = 1.3
"""Readings whose roughness differs less than this are equally smooth."""
MIN_ROWS = 16
"""With fewer rows, chance alone makes a reading look better."""
MAX_CHANCE = 1e-4
BLOCK_ROWS = 64
SAMPLED_BLOCKS = 64
"""Blocks of neighbours: single rows at a fixed distance can all lie on one phase of a wrong reading."""
TRIED_VALUES = 1 << 14

Floats = NDArray[np.floating]


def inspect_points(points: NDArray[np.float32]) -> Inspection:
    """Looks at every value for size and finiteness, at intensities for their sign, at a sample for the rest.

    Args:
        points: (N, C) float32, C-contiguous, C >= 3: x, y, z in metres, then an intensity where C > 3.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = points.min(), points.max()
        finite = bool(np.isfinite(low) and np.isfinite(high))
        nonfinite = 0 if finite else points.size - int(np.count_nonzero(np.isfinite(points)))
        in_range = finite and low >= -HUGE_M and high <= HUGE_M
        found = (None if in_range else _explain_range(points)) or _explain_sample(points)
        doubt = _doubt(points, found)
    return Inspection((doubt,) if doubt else (), nonfinite)


def _doubt(points: NDArray[np.float32], found: str | None) -> Doubt | None:
    """What is wrong: impossible values, or only odd ones that another reading explains."""
    odd = found or _explain_oddness(points)
    if odd is None:
        return None
    reading = _better_reading(points)
    if found is None and reading is None:
        return None
    columns = f"{points.shape[1]} columns of float32, x y z in metres in the sensor's frame"
    what, fix = reading or (
        "",
        "check what wrote the file; where such values are right, pack with force (--force)",
    )
    return Doubt(f"{odd}; {what}" if what else odd, columns, fix)


def _explain_range(points: NDArray[np.float32]) -> str | None:
    """The first of x, y, z with a finite value that no LiDAR gives."""
    seen = False
    for name, column in zip("xyz", points.T, strict=False):
        values = column[np.isfinite(column)]
        if not values.size:
            continue
        seen = True
        reach = max(float(values.max()), -float(values.min()))
        if reach > HUGE_M:
            return f"|{name}| reaches {reach:.4g} m"
    return None if seen else f"no finite x, y or z in {len(points):,} points"


def _explain_sample(points: NDArray[np.float32]) -> str | None:
    """Whether x, y, z are all zero, or mostly next to zero."""
    size = np.abs(_sample(points)[:, :3])
    nonzero = int(np.count_nonzero(size))
    if not nonzero:
        return None if points[:, :3].any() else f"x, y and z are 0 in all {len(points):,} points"
    tiny = int(np.count_nonzero(size < TINY)) - (size.size - nonzero)
    if tiny > nonzero // 2:
        return f"{tiny / nonzero:.0%} of the nonzero x, y, z are below {TINY:g} m"
    return None


def _explain_oddness(points: NDArray[np.float32]) -> str | None:
    """What is unusual but not impossible: negative intensities, an x that is always zero."""
    if points.shape[1] > 3:
        negative = np.count_nonzero(points[:, 3] < 0) / len(points)
        if negative > NEGATIVE_SHARE:
            return f"{negative:.0%} of the intensities (column 4 of {points.shape[1]}) are negative"
    if not _sample(points)[:, 0].any() and not points[:, 0].any():
        return f"x is 0 in all {len(points):,} points"
    return None


def _sample(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Some rows: all of a small scan, else blocks of neighbours spread over it."""
    blocks, columns = len(points) // BLOCK_ROWS, points.shape[1]
    if blocks <= SAMPLED_BLOCKS:
        return points
    whole = points[: blocks * BLOCK_ROWS].reshape(blocks, BLOCK_ROWS * columns)
    return np.ascontiguousarray(whole[:: blocks // SAMPLED_BLOCKS]).reshape(-1, columns)


def _better_reading(points: NDArray[np.float32]) -> tuple[str, str] | None:
    """Another reading of the same bytes that fits better, and what to do then."""
    values = points.reshape(-1)
    tried = values[:TRIED_VALUES]
    if _is_float64(tried, values.size):
        return (
            "read as float64 they are plausible: float64 values, 8 bytes a number",
            "convert to float32: numpy.fromfile(path, 'f8').astype('f4').tofile(path)",
        )
    if not _is_plausible(tried) and _is_plausible(tried.byteswap()):
        return "read as big-endian they are plausible", "write the values as little-endian float32 ('<f4')"
    if _is_integers(tried):
        return (
            "read as 32-bit integers they are plausible: labels?",
            "give the file of points, or convert to float32",
        )
    columns = _better_columns(points)
    if columns:
        return (
            f"{columns} columns fit better than {points.shape[1]}",
            f"convert the file to {points.shape[1]} columns;"
            " where the values are right as they are, pack with force (--force)",
        )
    return None


def _is_plausible(values: Floats) -> bool:
    """Whether nearly all values are 0 or of a size that measurements have."""
    return _measured_share(values) > 0.95


def _measured_share(values: Floats) -> float:
    size = np.abs(values)
    return float(np.count_nonzero((size == 0) | ((size >= SMALL) & (size <= HUGE_M)))) / max(len(values), 1)


def _is_float64(values: NDArray[np.float32], total: int) -> bool:
    """Whether pairs of values are float64: random or no lower halves, plausible together.

    Lower halves are random bits, of which half are huge or tiny as float32; or, when the numbers were
    float32 before, one of eight patterns, two of them huge; or all zero when the numbers are short.
    """
    if total % 2 or len(values) < 2:
        return False
    values = values[: len(values) // 2 * 2]
    lower = np.abs(values[::2])
    if lower.any() and not np.count_nonzero(lower > HUGE_M) > len(lower) // 10:
        return False
    wide = values.view("<f8")
    nonzero = wide[wide != 0]
    # A column of time stamps may lie outside.
    return len(nonzero) > 0 and _measured_share(nonzero) > 0.75


def _is_integers(values: NDArray[np.float32]) -> bool:
    bits = values.view("<u4")
    return bool(bits.any()) and int(bits.max()) < 1 << 24


def _better_columns(points: NDArray[np.float32]) -> int:
    """The smallest column count among the smoothest readings that beat the present one, else 0.

    Twice the right count is about as smooth: it reads every second point.
    """
    values = points.reshape(-1)
    present = _Reading(values, points.shape[1])
    better = [reading for reading in _readings(values, points.shape[1]) if reading.beats(present)]
    smoothest = min((reading.roughness for reading in better), default=0.0)
    return min((reading.columns for reading in better if reading.roughness <= SIMILAR * smoothest), default=0)


def _readings(values: NDArray[np.float32], present: int) -> Iterator[_Reading]:
    for columns in COLUMNS_IN_USE:
        if columns != present and values.size % columns == 0 and values.size // columns >= MIN_ROWS:
            yield _Reading(values, columns)


class _Reading:
    """What values look like as rows of so many columns (measured on the first `TRIED_VALUES` of them).

    Attributes:
        columns: the column count.
        rows: how many rows were measured.
        huge: share of rows with an x, y or z beyond `HUGE_M`.
        negative: share of negative intensities; 1 where there is no fourth column to show what it is.
        roughness: mean step from point to point over the standard deviation, for x, y and z; 1.13 where
            the order is random.
    """

    def __init__(self, values: NDArray[np.float32], columns: int) -> None:
        rows = values[: min(values.size, TRIED_VALUES) // columns * columns].reshape(-1, columns)
        finite = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
        xyz = finite[:, :3]
        self.columns = columns
        self.rows = len(finite)
        self.huge = float(np.mean(np.abs(xyz).max(axis=1) > HUGE_M)) if self.rows else 1.0
        self.negative = float(np.mean(finite[:, 3] < 0)) if self.rows and columns > 3 else 1.0
        self.roughness = _roughness(xyz)

    def beats(self, present: _Reading) -> bool:
        """Whether this reading is so much better than the present one that chance does not explain it."""
        if self.rows < MIN_ROWS or self.huge:
            return False
        cleaner = present.negative > NEGATIVE_SHARE and self.negative <= CLEAN_SHARE
        by_sign = cleaner and (1 - present.negative) ** self.rows < MAX_CHANCE
        by_size = present.huge > NEGATIVE_SHARE
        return by_sign or by_size or self.roughness < SMOOTHER * present.roughness


def _roughness(xyz: NDArray[np.float64]) -> float:
    if len(xyz) < 2:
        return np.inf
    steps, spread = np.abs(np.diff(xyz, axis=0)).mean(axis=0), xyz.std(axis=0)
    varied = spread > 0
    return float(np.mean(steps[varied] / spread[varied])) if varied.any() else np.inf

"""Poses, time stamps and calibrations in text files of numbers: pure functions of their text.

Rows are never matched to scans by counting scans: row k belongs to scan number k, or to the scan that the
row itself names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Value = TypeVar("Value")
CALIBRATION_KEYS = ("Tr", "Tr_velo_to_cam", "Tr_velo_cam")
"""LiDAR to camera in KITTI odometry, in KITTI object and in KITTI tracking."""
AFFINE_ROW = (0.0, 0.0, 0.0, 1.0)
ROW_FORMS = {12: (False, 12), 13: (True, 12), 16: (False, 16), 17: (True, 16)}
"""Numbers in a row of poses -> whether the first is a scan number, and how many make the matrix."""
MAX_SCAN_NUMBER = 2**53
_KEYED_LINE = re.compile(r"[ \t]*(\w+)(?:[ \t]*:|[ \t])(.*)", re.ASCII)
"""A key, with or without a colon (KITTI tracking has none), and what follows."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""Python's own `float` also takes "1_2", digits of other scripts and words."""
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t"


class TextError(ValueError):
    """A line that is not what it should be.

    Attributes:
        found: what is there, with the line's number.
        expected: what should be there.
    """

    def __init__(self, line: int, found: str, expected: str) -> None:
        self.found, self.expected = f"line {line}: {found}", expected
        super().__init__(f"{self.found}; expected {expected}")


@dataclass(frozen=True)
class Rows(Generic[Value]):
    """The values of a text file by the number of the scan that they belong to.

    Attributes:
        values: scan number -> value.
        named: whether the rows name their scans; else row k (from 0) is scan k.
    """

    values: Mapping[int, Value]
    named: bool = False

    def mismatch(self, scans: Collection[int], subset: bool, noun: str) -> str | None:
        """Why these rows and these scan numbers do not belong together, None where they do.

        Args:
            scans: the numbers of the scans that are there.
            subset: whether rows without a scan are fine.
            noun: the word for several values ("poses").
        """
        without_row = [] if self.named else sorted(set(scans) - self.values.keys())
        without_scan = [] if subset else sorted(self.values.keys() - set(scans))
        if not without_row and not without_scan:
            return None
        text = f"{len(self.values):,} {noun} for {len(scans):,} scans"
        if without_row:
            text += f"; none for scan {_ranges(without_row)}"
        return text + (f"; no scan {_ranges(without_scan)}" if without_scan else "")


@dataclass(frozen=True)
class Calibration:
    """What a calibration file tells: `lidar_to_camera` is (4, 4), None where the file does not have it."""

    lidar_to_camera: Matrix | None


def parse_poses(text: str) -> Rows[Matrix]:
    """The 4x4 matrices of a file of poses: 12 (3x4) or 16 numbers a row, perhaps behind a scan number.

    Raises `TextError` for a row of another length than the first, a value that is not finite, a scan number
    that is none or comes twice.
    """
    poses: dict[int, Matrix] = {}
    named, length = False, 0
    for line, numbers in _rows(text):
        if not length:
            length = len(numbers)
            named, _ = _row_form(line, length)
        if len(numbers) != length:
            raise TextError(line, f"{len(numbers)} numbers", f"{length}, as in the rows before")
        scan = _scan_number(line, numbers[0]) if named else len(poses)
        if scan in poses:
            raise TextError(line, f"scan {scan} again", "one row a scan")
        poses[scan] = _matrix(line, numbers[1:] if named else numbers)
    return Rows(poses, named)


def parse_times(text: str) -> Rows[float]:
    """The seconds of a file of time stamps, one a line. Raises `TextError` for anything else."""
    times: dict[int, float] = {}
    for line, numbers in _rows(text):
        if len(numbers) != 1:
            raise TextError(line, f"{len(numbers)} numbers", "one time stamp in seconds")
        times[len(times)] = numbers[0]
    return Rows(times)


def parse_calibration(text: str) -> Calibration:
    """The calibration that a file of lines such as "Tr: 12 numbers" holds; other lines are passed over.

    Raises `TextError` where the matrix is not 12 finite numbers or has no inverse, and for a second line of the
    same key with other numbers.
    """
    rows: dict[str, list[tuple[int, str]]] = {}
    for line, content in _lines(text):
        match = _KEYED_LINE.match(content)
        if match:
            rows.setdefault(match[1], []).append((line, match[2]))
    for key in CALIBRATION_KEYS:
        if key in rows:
            return Calibration(_calibration_matrix(key, rows[key]))
    return Calibration(None)


def lidar_poses(camera_poses: Mapping[int, Matrix], lidar_to_camera: Matrix) -> dict[int, Matrix]:
    """The LiDAR's poses from the camera's, as SemanticKITTI defines them: inv(Tr) P Tr."""
    inverse = np.linalg.inv(lidar_to_camera)
    # Grouped as in semantic-kitti-api, so that the last bits agree.
    return {scan: np.matmul(inverse, np.matmul(pose, lidar_to_camera)) for scan, pose in camera_poses.items()}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line with its number from 1, as editors count: Unicode has more line ends, which Python would take."""
    return enumerate(_LINE_END.split(text), 1)


def _rows(text: str) -> Iterator[tuple[int, list[float]]]:
    """Line number (from 1) and numbers of every line that is not blank."""
    for line, content in _lines(text):
        if content.strip(_BLANKS):
            yield line, _numbers(line, content)


def _numbers(line: int, content: str) -> list[float]:
    return [_number(line, word) for word in content.replace("\t", " ").split(" ") if word]


def _number(line: int, word: str) -> float:
    if _NOT_FINITE.fullmatch(word):
        raise TextError(line, word, "finite numbers")
    if not _NUMBER.fullmatch(word):
        raise TextError(line, repr(word), "numbers")
    value = float(word)
    if not math.isfinite(value):
        raise TextError(line, word, "finite numbers")
    return value


def _row_form(line: int, length: int) -> tuple[bool, int]:
    try:
        return ROW_FORMS[length]
    except KeyError:
        expected = "12 (a 3x4 matrix, row by row) or 16, or as many behind a scan number"
        raise TextError(line, f"{length} numbers", expected) from None


def _scan_number(line: int, value: float) -> int:
    if value < 0 or value > MAX_SCAN_NUMBER or value != int(value):
        raise TextError(line, f"{value:g} as the scan's number", "a whole number, then 12 or 16 of its matrix")
    return int(value)


def _matrix(line: int, numbers: list[float]) -> Matrix:
    if len(numbers) == 16 and tuple(numbers[12:]) != AFFINE_ROW:
        raise TextError(line, f"a 4x4 matrix that ends in {numbers[12:]}", "0 0 0 1 as its last row")
    return np.array([*numbers[:12], *AFFINE_ROW], np.float64).reshape(4, 4)


def _calibration_matrix(key: str, rows: list[tuple[int, str]]) -> Matrix:
    """The matrix of a key's first line, the same as that of its other lines."""
    (line, content), *others = rows
    numbers = _numbers(line, content)
    for other, repeated in others:
        if _numbers(other, repeated) != numbers:
            raise TextError(other, f"{key} again, with other numbers than in line {line}", f"one {key}")
    if len(numbers) != 12:
        raise TextError(line, f"{len(numbers)} numbers", "12 (a 3x4 matrix, row by row)")
    matrix = _matrix(line, numbers)
    if not abs(np.linalg.det(matrix)) > 1e-6:
        raise TextError(line, "a matrix without an inverse", "a rotation and a translation")
    return matrix


def _ranges(numbers: list[int], limit: int = 3) -> str:
    """Sorted numbers as ranges: "3, 7-9"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    more = f" and {len(texts) - limit:,} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more

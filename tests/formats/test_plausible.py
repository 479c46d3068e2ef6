from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastload.formats.base import Inspection
from fastload.formats.float_rows import FloatRows
from fastload.formats.kitti_bin import KITTI_BIN

NAMES = ("x", "y", "z", "intensity", "e", "f", "g", "h", "i", "j")
BIG_SCANS = 61_240


def inspect(values: NDArray[np.generic], columns: int = 4) -> Inspection:
    """What reading an array's bytes as float32 rows of so many columns raises doubts about."""
    data = values.tobytes()
    form = FloatRows("rows", NAMES[:columns])
    return form.inspect(form.decode(data[: len(data) // form.row.nbytes * form.row.nbytes]))


def only_doubt(inspection: Inspection) -> str:
    (doubt,) = inspection.doubts
    assert doubt.expected
    return f"{doubt.found} | {doubt.fix}"


@pytest.mark.parametrize("count", [1, 2, 50, 1000, BIG_SCANS])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_scan_is_beyond_doubt(make_scan, count: int, shuffled: bool) -> None:
    assert inspect(make_scan(count, shuffled=shuffled)) == Inspection()


@pytest.mark.parametrize("real", [3, 5, 6, 7, 9])
def test_a_scan_of_other_columns_is_recognised(make_scan, real: int) -> None:
    assert f"{real} columns fit better than 4" in only_doubt(inspect(make_scan(BIG_SCANS, real)))


@pytest.mark.parametrize("real", [4, 5, 6])
@pytest.mark.parametrize("count", [60, 600, BIG_SCANS])
def test_random_order_does_not_hide_other_columns(make_scan, real: int, count: int) -> None:
    declared = 5 if real == 4 else 4
    text = only_doubt(inspect(make_scan(count, real, shuffled=True), declared))
    assert f"{real} columns fit better than {declared}" in text


def test_time_stamps_among_the_columns_are_no_doubt_in_their_place_but_as_coordinates(make_scan) -> None:
    points = make_scan(600, 6)
    points[:, 5] = 1.550083e15
    assert inspect(points, 6) == Inspection()
    text = only_doubt(inspect(points, 4))
    assert "reaches 1.55e+15 m" in text
    assert "6 columns fit better than 4" in text


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_negative_intensities_alone_are_no_doubt(count: int, seed: int) -> None:
    points = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    assert inspect(points) == Inspection()


def test_intensities_up_to_65535_are_no_doubt(make_scan) -> None:
    points = make_scan(500)
    points[:, 3] *= 65535
    assert inspect(points) == Inspection()


def test_values_that_are_not_finite_are_counted_and_kept(make_scan) -> None:
    points = make_scan(500)
    points[3, 0], points[7, 3], points[9, 2] = np.nan, np.inf, -np.inf
    assert inspect(points) == Inspection(nonfinite=3)


def test_one_huge_coordinate_among_many_is_found_beside_nan(make_scan) -> None:
    points = make_scan(BIG_SCANS)
    points[BIG_SCANS - 7, 1] = -3e7
    assert "|y| reaches 3e+07 m" in only_doubt(inspect(points))
    points[5, 1] = np.nan
    inspection = inspect(points)
    assert "|y| reaches 3e+07 m" in only_doubt(inspection)
    assert inspection.nonfinite == 1
    assert "force" in only_doubt(inspection)


def test_nothing_finite_at_all() -> None:
    assert "no finite x, y or z in 9 points" in only_doubt(inspect(np.full((9, 4), np.nan, np.float32)))


def test_a_download_that_was_never_filled() -> None:
    assert "x, y and z are 0 in all 9,000 points" in only_doubt(inspect(np.zeros((9000, 4), np.float32)))


def test_missing_returns_stored_as_zeros_are_no_doubt(make_scan) -> None:
    points = make_scan(9000)
    points[:8999] = 0
    assert inspect(points) == Inspection()


@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_float64_is_recognised(make_scan, scale: float) -> None:
    text = only_doubt(inspect(make_scan(3000).astype("<f8") * scale))
    assert "float64 values, 8 bytes a number" in text
    assert "astype('f4')" in text


def test_float64_whole_numbers_are_recognised(make_scan) -> None:
    text = only_doubt(inspect(np.rint(np.abs(make_scan(3000))).astype("<f8")))
    assert "float64 values" in text


def test_big_endian_is_recognised(make_scan) -> None:
    assert "big-endian" in only_doubt(inspect(make_scan(3000).astype(">f4")))


def test_labels_under_the_name_of_points_are_recognised() -> None:
    labels = np.random.default_rng(0).integers(1, 260, 4000).astype("<u4")
    text = only_doubt(inspect(labels))
    assert "below 1e-30 m" in text
    assert "32-bit integers" in text


def test_big_scans_are_looked_at_quickly(make_scan) -> None:
    """Not a benchmark: ten times the usual 0.13 ms for 123,000 points would still pass."""
    import time

    parts = {"points": make_scan(123_000)}
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        KITTI_BIN.inspect(parts)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 2e-3

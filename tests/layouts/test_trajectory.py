from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.layouts.trajectory import (
    Rows,
    TextError,
    lidar_poses,
    parse_calibration,
    parse_poses,
    parse_times,
)

finite = st.floats(-1e9, 1e9)
rows = st.lists(st.lists(finite, min_size=12, max_size=12), min_size=1, max_size=5)


@given(rows, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.sampled_from([" ", "  ", "\t"]))
def test_every_number_comes_back_exactly(values: list[list[float]], named: bool, end: str, gap: str) -> None:
    first = 7 if named else 0
    text = end.join(gap.join([*([str(first + k)] if named else []), *map(repr, row)]) for k, row in enumerate(values))
    parsed = parse_poses(text + end)
    assert parsed.named == named
    assert list(parsed.values) == [first + k for k in range(len(values))]
    for pose, row in zip(parsed.values.values(), values, strict=True):
        assert pose[:3].ravel().tolist() == row
        assert pose[3].tolist() == [0, 0, 0, 1]


@given(st.integers(1, 30).filter(lambda count: count not in (12, 13, 16, 17)))
def test_rows_of_any_other_length_are_refused(count: int) -> None:
    with pytest.raises(TextError, match=rf"line 2: {count} numbers"):
        parse_poses("\n" + " ".join(["1"] * count))


def test_rows_of_two_lengths_are_refused() -> None:
    with pytest.raises(TextError, match="line 2: 13 numbers; expected 12"):
        parse_poses("1 " * 12 + "\n" + "1 " * 13)


def test_a_4x4_matrix_ends_in_an_affine_row() -> None:
    (pose,) = parse_poses("1 2 3 4 5 6 7 8 9 10 11 12 0 0 0 1").values.values()
    assert pose[2].tolist() == [9, 10, 11, 12]
    with pytest.raises(TextError, match="line 1: a 4x4 matrix"):
        parse_poses("1 " * 16)


@given(st.lists(finite))
def test_times_come_back_exactly(values: list[float]) -> None:
    assert list(parse_times("\n".join(map(repr, values))).values.values()) == values


def test_the_first_known_key_of_a_calibration_counts() -> None:
    identity = "1 0 0 5 0 1 0 6 0 0 1 7"
    other = "1 0 0 0 0 1 0 0 0 0 1 0"
    matrix = parse_calibration(f"Tr_velo_to_cam: {other}\nTr:{identity}\n\ncalib_time: 09-Jan-2012\n").lidar_to_camera
    assert matrix is not None
    assert matrix[:, 3].tolist() == [5, 6, 7, 1]
    assert parse_calibration("Tr_imu_to_velo: 1\n").lidar_to_camera is None


def test_the_pose_of_the_lidar() -> None:
    # LiDAR x is camera z, and the camera moves 2 m along its z: the LiDAR moves 2 m along its x.
    tr = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]], float)
    camera = np.eye(4)
    camera[2, 3] = 2
    assert lidar_poses({4: camera}, tr)[4][:3, 3].tolist() == [2, 0, 0]


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.booleans())
def test_rows_match_scans_exactly_or_cover_them(scans: set[int], count: int, subset: bool) -> None:
    rows = Rows(dict.fromkeys(range(count), 0.0))
    fits = scans <= set(range(count)) if subset else scans == set(range(count))
    assert (rows.mismatch(scans, subset, "times") is None) == fits


STRANGE = [
    "1_2",
    "\uff11",
    "\u0661",
    "1\u00a0",
    "1\x0b",
    "1\x0c",
    "0x10",
    "1e",
    "e1",
    "1e1_0",
    ".",
    "+",
    "1d3",
    "infinite",
]


@given(st.sampled_from(STRANGE), st.integers(0, 11))
def test_what_only_python_takes_for_a_number_is_refused_with_its_line(word: str, place: int) -> None:
    row = ["1"] * 12
    row[place] = word
    with pytest.raises(TextError, match=r"line 2: .*expected numbers"):
        parse_poses(" ".join(["1"] * 12) + "\n" + " ".join(row))
    with pytest.raises(TextError, match=r"line 1: .*expected numbers"):
        parse_times(word)
    with pytest.raises(TextError, match=r"line 1: .*expected numbers"):
        parse_calibration("Tr: " + " ".join(row))


@given(st.sampled_from(["nan", "-NaN", "inf", "+Infinity", "1e999", "-1e400"]))
def test_what_is_not_finite_is_refused(word: str) -> None:
    with pytest.raises(TextError, match=r"line 3: .*expected finite numbers"):
        parse_times(f"1\n\n{word}")


@given(st.sampled_from([("1.", 1), (".5", 0.5), ("+1e-3", 1e-3), ("-0", 0), ("1E5", 1e5), ("007", 7)]))
def test_numbers_as_programs_write_them(case: tuple[str, float]) -> None:
    assert parse_times(case[0]).values == {0: case[1]}


@given(st.sampled_from(["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]))
def test_other_line_ends_of_unicode_begin_no_row(end: str) -> None:
    with pytest.raises(TextError, match="line 1"):
        parse_times(f"1{end}2")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_as_an_editor_does(end: str) -> None:
    with pytest.raises(TextError, match="line 3"):
        parse_times(f"1{end}{end}x")
    assert parse_times(f"1{end}2{end}{end}").values == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("key", ["Tr", "Tr_velo_to_cam", "Tr_velo_cam"])
def test_a_key_that_comes_again_with_other_numbers_is_refused(key: str) -> None:
    first, second = "1 0 0 5 0 1 0 6 0 0 1 7", "1 0 0 5 0 1 0 6 0 0 1 8"
    with pytest.raises(TextError, match=f"line 3: {key} again, with other numbers than in line 1"):
        parse_calibration(f"{key}: {first}\nP0: 1\n{key}: {second}\n")
    with pytest.raises(TextError, match=f"line 2: {key} again"):
        parse_calibration(f"{key}: {first}\n{key}: 1 2 3\n")
    again = first.replace("5", "5.0")
    assert parse_calibration(f"{key}: {first}\n{key} : {again}\n").lidar_to_camera is not None

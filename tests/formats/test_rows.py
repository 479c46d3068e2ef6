from __future__ import annotations

import pickle
import re

import pytest

from fastload.errors import FormatError
from fastload.formats.registry import FORMATS, get_format
from fastload.formats.rows import Row, count_rows, explain_counts, explain_size, fitting_width

POINT = Row(16, "point", "x, y, z, intensity as float32", 4)
NUSCENES_POINT = Row(20, "point", "x, y, z, intensity, ring as float32", 5)
LABEL = Row(4, "label", "class and instance as uint32")


def test_whole_rows_are_counted() -> None:
    assert count_rows(1974224, POINT) == 123389
    assert count_rows(493556, LABEL) == 123389


def test_a_size_that_is_no_whole_number_of_points_says_which_columns_would_fit() -> None:
    with pytest.raises(FormatError) as caught:
        count_rows(528, NUSCENES_POINT)
    text = str(caught.value)
    assert "528 bytes" in text
    assert "20 bytes a point" in text
    assert "remainder 8" in text
    assert "33 points if 4 columns" in text
    assert "44 points if 3 columns" in text
    problem = caught.value.problems[0]
    assert (problem.path, problem.kind) == (None, "size")
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_a_size_that_fits_nothing_is_cut_short() -> None:
    doubt = explain_size(1974225, POINT)
    assert "not a multiple of 16" in doubt.found
    assert "columns (" not in doubt.fix
    assert "cut short" in doubt.fix


def test_labels_that_are_no_multiple_of_four() -> None:
    with pytest.raises(FormatError, match="94 bytes is not a multiple of 4"):
        count_rows(94, LABEL)


def test_no_bytes_at_all() -> None:
    with pytest.raises(FormatError, match=r"0 bytes.*unfilled download"):
        count_rows(0, POINT)


def test_the_head_tells_what_a_file_of_a_wrong_size_is() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:9\nsize 1974224\n"
    doubt = explain_size(130, POINT, pointer)
    assert "Git LFS pointer" in doubt.found
    assert "git lfs pull" in doubt.fix


@pytest.mark.parametrize(("told", "width"), [(1000, 4), (16000, 8)])
def test_a_header_that_counts_what_follows_is_recognised(told: int, width: int) -> None:
    doubt = explain_size(16000 + width, POINT, told.to_bytes(width, "little") + bytes(100))
    assert f"first {width} bytes" in doubt.fix


@pytest.mark.parametrize(
    ("labels_bytes", "texts"),
    [
        (24, ["24 points, 6 labels of 4 bytes", "1 byte a point: uint8?"]),
        (48, ["24 points, 12 labels of 4 bytes", "2 bytes a point: uint16, a voxel label?"]),
        (192, ["24 points, 48 labels of 4 bytes", "8 bytes a point: int64?"]),
        (94, ["24 points, 94 bytes of labels", "not a multiple of 4"]),
    ],
)
def test_labels_of_another_width(labels_bytes: int, texts: list[str]) -> None:
    doubt = explain_counts(24 * 16, 16, labels_bytes, 4)
    assert doubt is not None
    assert all(text in doubt.found for text in texts)
    assert "24 labels (96 bytes)" in doubt.expected


def test_labels_of_the_right_width_and_number_are_no_doubt() -> None:
    assert explain_counts(24 * 16, 16, 96, 4) is None
    assert explain_counts(24 * 16 + 1, 16, 94, 4) is None  # the points are the trouble


def test_the_column_count_that_fits_the_labels_is_named() -> None:
    doubt = explain_counts(400, 16, 80, 4)
    assert doubt is not None
    assert "25 points if 4 columns, 20 labels; 20 points if 5 columns: 5 columns fit" in doubt.found


def test_one_byte_labels_of_a_real_size() -> None:
    doubt = explain_counts(555_008, 16, 34_688, 4)
    assert doubt is not None
    assert "34,688 points, 8,672 labels of 4 bytes" in doubt.found
    assert "1 byte a label would fit" in doubt.found


def test_five_columns_declared_as_four_beside_one_byte_labels() -> None:
    doubt = explain_counts(693_760, 16, 34_688, 1)
    assert doubt is not None
    assert "43,360 points if 4 columns" in doubt.found
    assert "34,688 points if 5 columns" in doubt.found


def test_predictions_of_a_filtered_scan_are_neither_cut_nor_padded() -> None:
    doubt = explain_counts(16_000, 16, 994 * 4, 4)
    assert doubt is not None
    assert "1,000 points, 994 labels" in doubt.found
    assert "nothing is cut or padded" in doubt.fix
    assert "filtered scan" in doubt.fix


def test_a_stray_header_of_labels_is_guessed() -> None:
    doubt = explain_counts(16_000, 16, 4128, 4)
    assert doubt is not None
    assert "1,000 points, 1,032 labels" in doubt.found
    assert "stray header of 128 bytes?" in doubt.found


@pytest.mark.parametrize(("points", "width", "hint"), [
    (24_689, 1, "uint8?"), (25, 2, "uint16, a voxel label?"), (25, 1, "uint8?"), (3, 8, "int64?"),
])  # fmt: skip
def test_labels_of_another_width_whose_size_is_no_multiple_of_four(points: int, width: int, hint: str) -> None:
    doubt = explain_counts(points * 16, 16, points * width, 4)
    assert doubt is not None
    assert f"{points:,} points, " in doubt.found
    assert hint in doubt.found
    assert fitting_width(points, points * width) == width
    assert "not a multiple" not in doubt.found


def test_widths_that_no_label_has_do_not_fit() -> None:
    assert [fitting_width(24, size) for size in (0, 72, 94, 120, 24 * 16)] == [0] * 5
    assert fitting_width(0, 24) == 0


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_how_long_its_rows_are(name: str) -> None:
    found = get_format(name)
    assert found.row_bytes is None or found.rows(7 * found.row_bytes) == 7


@pytest.mark.parametrize("labels_bytes", [0, 1, 24, 25, 48, 80, 94, 100, 128, 192, 4128])
def test_no_advice_names_what_cannot_be_done(labels_bytes: int) -> None:
    """No other columns can be declared, and there is no other layout to use."""
    doubts = [explain_counts(points * 16, 16, labels_bytes, 4) for points in (5, 24, 25, 1000)]
    doubts += [explain_size(labels_bytes * 4 + 2, POINT), explain_size(labels_bytes * 20, POINT)]
    for doubt in doubts:
        assert doubt is None or not re.search("declare|setting|--columns|layout", doubt.fix), doubt

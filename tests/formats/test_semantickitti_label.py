from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastload.errors import FormatError
from fastload.formats import sniff
from fastload.formats.base import Inspection
from fastload.formats.semantickitti_label import SEMANTICKITTI_LABEL


def test_class_and_instance_are_the_two_halves() -> None:
    data = struct.pack("<4I", 10, 252 | (7 << 16), 65535 | (65535 << 16), 0)
    parts = SEMANTICKITTI_LABEL.decode(data)
    assert parts["semantic"].tolist() == [10, 252, 65535, 0]
    assert parts["instance"].tolist() == [0, 7, 65535, 0]
    assert all(part.dtype == np.uint16 and part.flags.c_contiguous for part in parts.values())
    assert SEMANTICKITTI_LABEL.rows(len(data)) == 4


@given(st.binary(min_size=4, max_size=640))
def test_every_file_of_a_right_size_comes_back_byte_for_byte(data: bytes) -> None:
    data = data[: len(data) // 4 * 4]
    assume(sniff.foreign(data[:512]) is None)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert SEMANTICKITTI_LABEL.encode(SEMANTICKITTI_LABEL.decode(buffer)) == data


@given(st.integers(0, 2000).filter(lambda size: size % 4 or not size))
def test_every_other_size_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match=rf"\b{size} bytes"):
        SEMANTICKITTI_LABEL.decode(b"\x01" * size)


def test_unlabelled_scans_are_legal() -> None:
    parts = SEMANTICKITTI_LABEL.decode(bytes(400))
    assert not parts["semantic"].any()
    assert SEMANTICKITTI_LABEL.inspect(parts) == Inspection()


def test_text_under_this_name_is_named() -> None:
    with pytest.raises(FormatError, match="12 bytes that are text"):
        SEMANTICKITTI_LABEL.decode(b"10\n40\n40\n40\n")


@pytest.mark.parametrize(("dtype", "hint"), [("<f4", "float32"), (">u4", "big-endian")])
def test_labels_of_the_right_size_in_another_number_format_are_doubted(dtype: str, hint: str) -> None:
    data = np.array([10, 40, 70, 44, 252, 1], dtype).tobytes()
    (doubt,) = SEMANTICKITTI_LABEL.inspect(SEMANTICKITTI_LABEL.decode(data)).doubts
    assert "class 0 in all 6 labels" in doubt.found
    assert hint in doubt.fix


@pytest.mark.parametrize(
    ("semantic", "instance"),
    [
        (np.zeros(3, np.uint16), np.zeros(4, np.uint16)),
        (np.zeros(3, np.uint32), np.zeros(3, np.uint16)),
        (np.zeros((3, 1), np.uint16), np.zeros((3, 1), np.uint16)),
        (np.zeros(0, np.uint16), np.zeros(0, np.uint16)),
    ],
)
def test_arrays_of_another_shape_or_dtype_are_not_written(semantic: np.ndarray, instance: np.ndarray) -> None:
    with pytest.raises(FormatError, match="uint16"):
        SEMANTICKITTI_LABEL.encode({"semantic": semantic, "instance": instance})

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastload.errors import FormatError
from fastload.formats import sniff
from fastload.formats.float_rows import FloatRows
from fastload.formats.kitti_bin import KITTI_BIN


def test_values_are_little_endian_float32_rows() -> None:
    data = struct.pack("<8f", 62.08, 5.7, 2.3, 0.0, -1.0, 2.0, -3.5, 0.99)
    points = KITTI_BIN.decode(data)["points"]
    assert points.dtype == np.float32
    assert points.shape == (2, 4)
    assert points[1].tolist() == pytest.approx([-1.0, 2.0, -3.5, 0.99])
    assert KITTI_BIN.rows(len(data)) == 2


def test_arrays_share_the_memory_of_the_bytes() -> None:
    data = bytearray(np.ones(8, "<f4").tobytes())
    points = KITTI_BIN.decode(data)["points"]
    data[:4] = struct.pack("<f", 7.0)
    assert points[0, 0] == 7.0


@given(st.binary(min_size=16, max_size=640))
def test_every_file_of_a_right_size_comes_back_byte_for_byte(data: bytes) -> None:
    data = data[: len(data) // 16 * 16]
    assume(sniff.foreign(data[:512]) is None)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert KITTI_BIN.encode(KITTI_BIN.decode(buffer)) == data


@given(st.lists(st.integers(0x7F800001, 0x7FFFFFFF) | st.integers(0xFF800001, 0xFFFFFFFF), min_size=4, max_size=4))
def test_nan_payloads_survive(bits: list[int]) -> None:
    data = struct.pack("<4I", *bits)
    assert KITTI_BIN.encode(KITTI_BIN.decode(data)) == data


@given(st.integers(0, 2000).filter(lambda size: size % 16 or not size))
def test_every_other_size_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match=rf"\b{size} bytes"):
        KITTI_BIN.decode(b"\x01" * size)
    with pytest.raises(FormatError, match=rf"\b{size} bytes"):
        KITTI_BIN.rows(size)


def test_a_numpy_file_under_this_name_is_named() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((30, 4), np.float32))
    data = file.getvalue()
    assert len(data) % 16 == 0
    with pytest.raises(FormatError, match=r"608 bytes that are a NumPy \.npy file.*x, y, z, intensity.*tofile"):
        KITTI_BIN.decode(data)


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((3, 4), np.float64),
        np.zeros((3, 5), np.float32),
        np.zeros(12, np.float32),
        np.zeros((0, 4), np.float32),
    ],
)
def test_arrays_of_another_shape_or_dtype_are_not_written(points: np.ndarray) -> None:
    with pytest.raises(FormatError, match="float32"):
        KITTI_BIN.encode({"points": points})


def test_other_column_counts_are_the_same_class() -> None:
    five = FloatRows("five", ("x", "y", "z", "intensity", "ring"))
    data = np.arange(1, 16, dtype="<f4").tobytes()
    assert five.decode(data)["points"].tolist() == np.arange(1, 16).reshape(3, 5).tolist()
    assert five.rows(60) == 3
    assert five.parts == ("points",)

"""`.npy` files: numpy reads what we write, and writes what we read."""

import io

import numpy as np
import pytest

from fastload.errors import CorruptError
from fastload.store import files
from fastload.store.files import CheckedFile, describe_blocks
from fastload.store.npy import RowFile, npy_header

DTYPES = [np.dtype("<u8"), np.dtype([("offset", "<u8"), ("rows_ä", "<u4")])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 12345])
def test_numpy_reads_it(tmp_path, dtype, length):
    values = np.frombuffer(np.random.default_rng(0).bytes(length * dtype.itemsize), dtype)
    data = npy_header(dtype, length) + values.tobytes()
    assert np.array_equal(np.load(io.BytesIO(data)), values)
    (tmp_path / "x.npy").write_bytes(data)
    found = RowFile(tmp_path, describe_blocks(tmp_path, "x.npy"), dtype, length)
    assert len(found) == length
    assert np.array_equal(found.read(0, length), values)
    numbers = np.random.default_rng(1).integers(0, length, 300) if length else np.empty(0, np.int64)
    assert np.array_equal(found.take(numbers), values[numbers])
    assert length == 0 or found[length - 1] == values[-1]
    assert np.array_equal(np.concatenate([values[:0], *found.blocks(0, length)]), values)
    with pytest.raises(IndexError):
        found.read(0, length + 1)


def test_every_flipped_byte_is_noticed_wherever_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    data = np.random.default_rng(0).bytes(1050)
    path = tmp_path / "x"
    path.write_bytes(data)
    entry = describe_blocks(tmp_path, "x")
    assert len(entry.blocks) == 11
    for position in range(0, 1050, 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 2]) + data[position + 1 :])
        file = CheckedFile(tmp_path, entry)
        for start, size in ((position, 1), (0, 1050), (max(0, position - 60), 61)):
            with pytest.raises(CorruptError, match="not those that were written"):
                file.read(size, start)
        far = 900 if position < 500 else 0
        assert file.read(100, far) == data[far : far + 100]


def test_reads_of_any_place_and_size_are_right(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    rng = np.random.default_rng(1)
    data = rng.bytes(1000)
    (tmp_path / "x").write_bytes(data)
    file = CheckedFile(tmp_path, describe_blocks(tmp_path, "x"))
    for _ in range(500):
        start = int(rng.integers(0, 1001))
        size = int(rng.integers(0, 1001 - start))
        assert file.read(size, start) == data[start : start + size]

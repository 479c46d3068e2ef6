"""`.npy` files: numpy reads what we write, and writes what we read."""

import io

import numpy as np
import pytest

from fastload.store.npy import RowFile, npy_header

DTYPES = [np.dtype("<u8"), np.dtype([("offset", "<u8"), ("rows_ä", "<u4")])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 12345])
def test_numpy_reads_it(tmp_path, dtype, length):
    values = np.frombuffer(np.random.default_rng(0).bytes(length * dtype.itemsize), dtype)
    data = npy_header(dtype, length) + values.tobytes()
    assert np.array_equal(np.load(io.BytesIO(data)), values)
    (tmp_path / "x.npy").write_bytes(data)
    found = RowFile(tmp_path / "x.npy", len(data), dtype, length)
    assert len(found) == length
    assert np.array_equal(found.read(0, length), values)
    numbers = np.random.default_rng(1).integers(0, length, 300) if length else np.empty(0, np.int64)
    assert np.array_equal(found.take(numbers), values[numbers])
    assert length == 0 or found[length - 1] == values[-1]
    assert np.array_equal(np.concatenate([values[:0], *found.blocks(0, length)]), values)
    with pytest.raises(IndexError):
        found.read(0, length + 1)

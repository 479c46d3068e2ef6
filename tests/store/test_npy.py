"""`.npy` files: numpy reads what we write, and writes what we read."""

import io

import numpy as np
import pytest

from fastload.store.npy import npy_header, open_npy

DTYPES = [np.dtype("<u8"), np.dtype([("offset", "<u8"), ("rows_ä", "<u4")])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 12345])
def test_numpy_reads_it(tmp_path, dtype, length):
    values = np.frombuffer(np.random.default_rng(0).bytes(length * dtype.itemsize), dtype)
    data = npy_header(dtype, length) + values.tobytes()
    assert np.array_equal(np.load(io.BytesIO(data)), values)
    (tmp_path / "x.npy").write_bytes(data)
    found = open_npy(tmp_path / "x.npy", len(data), dtype, length)
    assert found.dtype == dtype
    assert np.array_equal(found, values)
    assert not (length and found.flags.writeable)

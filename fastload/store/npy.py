"""One-dimensional `.npy` files whose form is known beforehand: written, and mapped without parsing a header.

The header (numpy's format version 3.0, whose text is UTF-8: `numpy.lib.format`) follows from dtype and length,
so what is read is held against what it must be; nothing in the file is interpreted.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import CorruptError

_MAGIC = b"\x93NUMPY\x03\x00"
_ALIGNMENT = 64


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The bytes before the values of an array of shape (length,)."""
    description = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': ({length},), }}".encode()
    size = len(_MAGIC) + 4 + len(text) + 1
    padded = text + b" " * (-size % _ALIGNMENT) + b"\n"
    return _MAGIC + len(padded).to_bytes(4, "little") + padded


def open_npy(path: Path, nbytes: int, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """The file's values, (length,) of `dtype`, mapped read-only.

    Raises:
        CorruptError: missing, of another size than the manifest says (`nbytes`), or of another form.
    """
    header = npy_header(dtype, length)
    data = map_file(path, nbytes)
    if nbytes != len(header) + length * dtype.itemsize or data[: len(header)] != header:
        raise CorruptError(
            f"{path}: its first bytes are not those of a .npy file of {length} values of {dtype}; damaged or"
            " exchanged; copy the dataset anew, or pack it again",
            shard=path.name,
        )
    return np.frombuffer(data, dtype, length, len(header)) if length else np.empty(0, dtype)


def map_file(path: Path, nbytes: int) -> mmap.mmap | bytes:
    """A file of a known size, mapped read-only. Raises `CorruptError` when it is missing or of another size."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CorruptError(f"{path}: missing; copy the dataset anew, or pack it again", shard=path.name) from error
    try:
        size = os.fstat(fd).st_size
        if size != nbytes:
            raise CorruptError(
                f"{path}: {size:,} bytes; expected {nbytes:,} as dataset.json says: cut short or exchanged;"
                " copy the dataset anew, or pack it again",
                shard=path.name,
            )
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
    finally:
        os.close(fd)

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.formats import sniff


def _saved_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((30, 4), np.float32))
    return file.getvalue()


def _saved_npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, points=np.zeros((30, 4), np.float32))
    return file.getvalue()


LAS_HEADER = b"LASF" + bytes(20) + b"\x01\x02" + bytes(300)
SAVED = {
    sniff.NPY: _saved_npy(),
    sniff.ZIP: _saved_npz(),
    sniff.GZIP: gzip.compress(b"12345678"),
    sniff.PCD: b"# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z\n" + bytes(99),
    sniff.PLY: b"ply\nformat binary_little_endian 1.0\nelement vertex 8\n" + bytes(99),
    sniff.LAS: LAS_HEADER,
    sniff.HTML: b"\n<!DOCTYPE html><html><body>404 Not Found</body></html>",
    sniff.JSON: json.dumps({"error": "no such file"}).encode(),
    sniff.LFS: b"version https://git-lfs.github.com/spec/v1\noid sha256:92e9\nsize 1974224\n",
    sniff.TEXT: b"62.080 5.706 2.317 0.0\n61.9 5.8 2.3 0.1\n",
    "a PNG image": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "a JPEG image": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
    "a WebP image": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
    "an HDF5 file": b"\x89HDF\r\n\x1a\n\x00\x00",
}


@pytest.mark.parametrize("what", SAVED)
def test_other_kinds_of_files_are_named(what: str) -> None:
    data = SAVED[what]
    assert sniff.what_is(data[: sniff.HEAD_BYTES], len(data)) == what
    assert sniff.fix_for(what)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [np.zeros((4, 4), np.float32), {"points": [1.5] * 9}, [1.0, 2.0, 3.0]])
def test_pickles_are_named(protocol: int, value: object) -> None:
    data = pickle.dumps(value, protocol)
    assert sniff.what_is(data[: sniff.HEAD_BYTES], len(data)) == sniff.PICKLE


def test_an_empty_file_and_one_of_zeros_are_named() -> None:
    assert sniff.what_is(b"", 0) == sniff.EMPTY
    assert sniff.what_is(bytes(64), 64) == sniff.ZEROS
    assert sniff.what_is(bytes(512), 1024) is None  # the rest is not known


def test_text_may_have_letters_beyond_ascii_and_be_cut_within_one() -> None:
    text = ("Straße 1.25 °\n" * 40).encode()
    assert sniff.what_is(text[:512], len(text)) == sniff.TEXT
    cut = ("x" * 511 + "ß").encode()[:512]
    assert sniff.what_is(cut, 600) == sniff.TEXT
    assert sniff.what_is(b"\xef\xbb\xbf1.0 2.0 3.0\n", 15) == sniff.TEXT


@given(st.lists(st.tuples(*[st.floats(-250, 250, width=32)] * 3, st.floats(0, 1, width=32)), min_size=3))
def test_plausible_scans_are_never_taken_for_something_else(rows: list[tuple[float, ...]]) -> None:
    data = np.array(rows, "<f4").tobytes()
    if any(data[:48]):
        assert sniff.what_is(data[:512], len(data)) is None


@given(st.lists(st.tuples(st.integers(0, 259), st.integers(0, 2000)), min_size=1))
def test_plausible_labels_are_never_taken_for_something_else(labels: list[tuple[int, int]]) -> None:
    data = b"".join(struct.pack("<HH", *label) for label in labels)
    assert sniff.foreign(data[:512]) is None


def test_scans_that_begin_with_the_two_bytes_of_a_pickle_pass() -> None:
    # 0x41630280 is x = 14.19: the magic of pickle protocol 2 and the opcode "c".
    data = struct.pack("<I", 0x41630280) + np.array([1.5, -0.3, 0.2, 3.0], "<f4").tobytes()
    assert sniff.foreign(data) is None

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import struct
import zipfile

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


def _saved_zip(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(99), zipfile.ZIP_DEFLATED)
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
    assert sniff.foreign(data[: sniff.HEAD_BYTES]) == what
    assert sniff.fix_for(what)


OTHERS = [
    (_saved_zip("ä.bin"), sniff.ZIP),
    (_saved_zip(), sniff.ZIP),
    (b"PK\x03\x04\x00\x00\x08\x08" + bytes(40), sniff.ZIP),  # as torch.save writes it
    (gzip.compress(bytes(range(256)) * 9, 1), sniff.GZIP),
    (gzip.compress(b"", mtime=0), sniff.GZIP),
    (b"\x1f\x8b\x08\x08\x8f\xf2\x9ce\x02\x03scan.bin\x00" + gzip.compress(b"x" * 99)[10:], sniff.GZIP),
    (b"ply\r\nformat ascii 1.0\r\n", sniff.PLY),
    (b"ply\rcomment by hand\r", sniff.PLY),
    (b"\xff\xd8\xff\xdb\x00C\x00" + bytes(64), "a JPEG image"),
    (b"\xff\xd8\xff\xe1\x2f\xfeExif\x00\x00", "a JPEG image"),
    (b"GIF89a\x80\x07\x38\x04\xf7\x00\x00", "a GIF image"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", sniff.PICKLE),  # as torch.save wrote it once
    (b"<HTML><HEAD><TITLE>404 Not Found</TITLE>", sniff.HTML),
    (b'<?xml version="1.0" encoding="UTF-8"?><Error>', sniff.HTML),
    ("<!doctype html><title>Nicht verfügbar</title>".encode("latin-1"), sniff.HTML),
    (b"<html></html>", sniff.HTML),
]


@pytest.mark.parametrize(("data", "what"), OTHERS, ids=range(len(OTHERS)))
def test_other_forms_of_these_kinds_are_named_too(data: bytes, what: str) -> None:
    assert sniff.foreign(data[: sniff.HEAD_BYTES]) == what


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [np.zeros((4, 4), np.float32), {"points": [1.5] * 9}, [1.0, 2.0, 3.0]])
def test_pickles_are_named(protocol: int, value: object) -> None:
    data = pickle.dumps(value, protocol)
    assert sniff.foreign(data[: sniff.HEAD_BYTES]) == sniff.PICKLE


def test_nothing_and_nothing_but_zeros_are_no_other_kind_of_file() -> None:
    assert sniff.foreign(b"") is None
    assert sniff.foreign(bytes(512)) is None  # labels of nothing but zeros are legal


def test_text_may_have_letters_beyond_ascii_and_be_cut_within_one() -> None:
    text = ("Straße 1.25 °\n" * 40).encode()
    assert sniff.foreign(text[:512]) == sniff.TEXT
    cut = ("x" * 511 + "ß").encode()[:512]
    assert sniff.foreign(cut) == sniff.TEXT
    assert sniff.foreign(b"\xef\xbb\xbf1.0 2.0 3.0\n") == sniff.TEXT


@given(st.lists(st.tuples(*[st.floats(-250, 250, width=32)] * 3, st.floats(0, 1, width=32)), min_size=3))
def test_plausible_scans_are_never_taken_for_something_else(rows: list[tuple[float, ...]]) -> None:
    data = np.array(rows, "<f4").tobytes()
    if any(data[:48]):
        assert sniff.foreign(data[:512]) is None


@given(st.lists(st.tuples(st.integers(0, 259), st.integers(0, 2000)), min_size=1))
def test_plausible_labels_are_never_taken_for_something_else(labels: list[tuple[int, int]]) -> None:
    data = b"".join(struct.pack("<HH", *label) for label in labels)
    assert sniff.foreign(data[:512]) is None


def test_scans_that_begin_with_the_two_bytes_of_a_pickle_pass() -> None:
    # 0x41630280 is x = 14.19: the magic of pickle protocol 2 and the opcode "c".
    data = struct.pack("<I", 0x41630280) + np.array([1.5, -0.3, 0.2, 3.0], "<f4").tobytes()
    assert sniff.foreign(data) is None


FIRST_BYTES = (
    *(mark for mark, _ in sniff._MARKS),
    *(b"\xff\xd8\xff\xe0", b"GIF87a", b"GIF89a", b"PK\x03\x04", b"ply\n", b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08\x08"),
    *(
        b"RIFF",
        b"LASF",
        b"BM6",
        b"II*\x00",
        b"<HEAD",
        b"<html",
        b"<HTML",
        b"   <",
        b"\n\n\n<",
        b"<!DO",
        b"<?xm",
        b'{"a',
        b"[1,",
    ),
    *(bytes([0x80, protocol, opcode]) for protocol in range(2, 6) for opcode in b"\x95c]})(X\x8a"),
)
REACH_M, SMALL_M = 200, 1e-6


def plausible_firsts() -> list[bytes]:
    """First values that begin as a mark does, whatever their last byte, where that gives a coordinate."""
    firsts = {mark[:3] + bytes([last]) for mark in FIRST_BYTES for last in range(256)}
    values = {first: abs(struct.unpack("<f", first)[0]) for first in firsts}
    return sorted(first for first, value in values.items() if SMALL_M <= value <= REACH_M)


def rest_of_scan(rng: np.random.Generator, kind: str) -> bytes:
    rows = rng.uniform(-60, 60, (16, 4))
    rows[:, 3] = rng.random(16)
    if kind == "on a grid":  # many values then end in zero bytes
        rows = np.round(rows * 2) / 2
    if kind == "in one plane":
        rows[:, rng.integers(3)] = 0
    return rows.astype("<f4").tobytes()[4:]


@pytest.mark.parametrize("kind", ["anything", "on a grid", "in one plane"])
def test_scans_whose_first_value_begins_as_a_mark_does_pass(kind: str) -> None:
    rng = np.random.default_rng(5)
    firsts = plausible_firsts()
    assert struct.pack("<I", 0x40FFD8FF) in firsts  # 7.995 m, the mark of JPEG
    assert struct.pack("<I", 0x41950480) in firsts  # 18.63 m, a pickle of protocol 4
    for first in firsts * 3:
        data = first + rest_of_scan(rng, kind)
        assert sniff.foreign(data) is None, (kind, data.hex())


def test_scans_that_go_on_as_a_mark_does_pass() -> None:
    """The second value, too, may have bytes of a mark, as far as it stays a coordinate."""
    rng = np.random.default_rng(6)
    longer = [mark for mark in FIRST_BYTES if len(mark) >= 5]
    for first in plausible_firsts():
        for mark in longer:
            data = first + mark[4:7].ljust(3, b"\0") + b"\x41" + rest_of_scan(rng, "anything")[4:]
            assert sniff.foreign(data) is None, data.hex()


def test_labels_that_begin_as_a_mark_does_pass() -> None:
    rng = random.Random(7)
    for mark in FIRST_BYTES:
        for semantic in {mark[0], mark[0] | 0x100} & set(range(300)):
            for _ in range(50):
                labels = [semantic | rng.randrange(5000) << 16, *(rng.randrange(300) for _ in range(40))]
                assert sniff.foreign(np.array(labels, "<u4").tobytes()) is None, labels[0]


def test_scans_packed_with_such_a_first_value_decode() -> None:
    from fastload.formats.kitti_bin import KITTI_BIN

    data = struct.pack("<I", 0x40FFD8FF) + rest_of_scan(np.random.default_rng(1), "anything")
    assert KITTI_BIN.decode(data)["points"][0, 0] == pytest.approx(7.995, abs=1e-3)

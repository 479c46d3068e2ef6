"""The page walk: what LMDB itself finds, and an error for anything damaged."""

import os

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.store.pages import walk
from fastload.store.record import DamageError


def write(path, values, commit_every=1000):
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as env:
        items = sorted(values.items())
        for start in range(0, len(items), commit_every):
            with env.begin(write=True) as txn:
                for key, value in items[start : start + commit_every]:
                    assert txn.put(key, value, append=True)


def read(path):
    with open(path, "rb") as file:
        return {e.key: os.pread(file.fileno(), e.nbytes, e.offset) for e in walk(file.fileno())}


@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.integers(0, 9000), max_size=60), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_walk_finds_what_was_written(tmp_path_factory, sizes, commit_every):
    path = tmp_path_factory.mktemp("pages") / "x.lmdb"
    values = {key: os.urandom(size) for key, size in sizes.items()}
    write(path, values, commit_every)
    assert read(path) == values


def test_walk_of_a_deep_tree(tmp_path):
    values = {i.to_bytes(8, "big"): i.to_bytes(8, "big") * 6 for i in range(20_000)}
    write(tmp_path / "x.lmdb", values, 700)
    assert list(read(tmp_path / "x.lmdb").items()) == list(values.items())


def test_no_flipped_byte_leads_out_of_the_file(tmp_path):
    path = tmp_path / "x.lmdb"
    values = {bytes([i]): bytes([i]) * (20 if i % 3 else 5000) for i in range(12)}
    write(path, values)
    data = bytearray(path.read_bytes())
    with open(path, "rb") as file:
        right = list(walk(file.fileno()))
    values_at = {position for e in right for position in range(e.offset, e.offset + e.nbytes)}
    refused = 0
    fd = os.open(path, os.O_RDWR)
    for position in sorted(set(range(len(data))) - values_at):
        os.pwrite(fd, bytes([data[position] ^ 0xFF]), position)
        try:
            # A key or a size may have changed, or an older state may count: records and counts tell that.
            found = list(walk(fd))
            assert len(found) <= len(values)
            assert all(0 < e.offset <= e.offset + e.nbytes <= len(data) for e in found)
        except DamageError:
            refused += 1
        os.pwrite(fd, data[position : position + 1], position)
    os.close(fd)
    assert refused > 200


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8192, 12288])
def test_cut_files_are_refused(tmp_path, size):
    path = tmp_path / "x.lmdb"
    write(path, {bytes([i]): bytes(3000) for i in range(20)})
    os.truncate(path, size)
    with pytest.raises(DamageError):
        read(path)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.lmdb"
    path.write_bytes(b"not a database at all, only text " * 1000)
    with pytest.raises(DamageError, match="without an LMDB meta page"):
        read(path)


def test_another_data_version_is_refused_by_name(tmp_path):
    path = tmp_path / "x.lmdb"
    write(path, {b"a": b"b"})
    data = bytearray(path.read_bytes())
    data[20] = data[4096 + 20] = 2
    path.write_bytes(data)
    with pytest.raises(DamageError, match="data version 2"):
        read(path)

"""The store as a whole: any samples written come back, by plain reads and through LMDB alike."""

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.errors import CorruptError
from fastload.schema import Field, Schema
from fastload.store import pages
from fastload.store.reader import open_store
from tests.support import MadeSample, rebind, same, samples_of, schemas, tree_bytes, write_store

POINTS = Schema((Field("points", "array", "float32", (4,), "points"), Field("pose", "array", "float64", (4, 4))))


def made(count, rows=10, split="train", seed=0):
    rng = np.random.default_rng(seed)
    return [
        MadeSample(f"{i:04d}", split, {"points": rng.random((rows, 4), np.float32), "pose": rng.random((4, 4))})
        for i in range(count)
    ]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_samples_of_any_schema_come_back(data):
    schema = data.draw(schemas())
    samples = data.draw(samples_of(schema, max_samples=8))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        ordered = write_store(root, schema, samples, per_shard=data.draw(st.integers(1, 4)), commit_bytes=4096)
        store = open_store(root)
        assert store.manifest.samples == len(ordered) == len(store.names)
        for number, sample in enumerate(ordered):
            arrays = store.read(number)
            assert list(arrays) == [name for name in schema.names if name in sample.arrays]
            assert all(same(arrays[name], np.asarray(sample.arrays[name])) for name in arrays)
            assert store.names[number] == sample.name
            ranges = [part for parts in store.manifest.splits.values() for part in parts]
            assert store.names.find(sample.name, ranges) == number
            again = store.read(number, fields=list(arrays)[::2], check=False)
            assert all(same(again[name], arrays[name]) for name in list(arrays)[::2])
        for split, parts in store.manifest.splits.items():
            assert all(ordered[n].split == split for start, stop in parts for n in range(start, stop))
        assert store.names.find("no such name, surely", [(0, len(ordered))]) is None


@pytest.mark.parametrize("rows", [1, 100, 1000, 20_000])
def test_recorded_offsets_are_where_lmdb_finds_the_values(tmp_path, rows):
    write_store(tmp_path, POINTS, made(25, rows), per_shard=25, commit_bytes=100_000)
    shard = tmp_path / "shards" / "00000.lmdb"
    index = open_store(tmp_path).index
    data = shard.read_bytes()
    with lmdb.open(str(shard), subdir=False, lock=False, readonly=True) as env, env.begin() as txn:
        from_lmdb = {int.from_bytes(key, "big"): bytes(value) for key, value in txn.cursor()}
    for number, row in enumerate(index.read(0, 25)):
        start = int(row["offset"])
        assert data[start : start + int(row["record_bytes"])] == from_lmdb[number]
    with shard.open("rb") as file:
        walked = {int.from_bytes(e.key, "big"): data[e.offset : e.offset + e.nbytes] for e in pages.walk(file.fileno())}
    assert walked == from_lmdb


def test_large_fields_lie_at_multiples_of_64_of_the_file(tmp_path):
    write_store(tmp_path, POINTS, made(3, 1000))
    store = open_store(tmp_path)
    for number in range(3):
        offset = int(store.index[number]["offset"])
        assert all((offset + place.offset) % 64 == 0 for place in store.places(number))


def test_two_writes_are_byte_identical(tmp_path):
    for name in "ab":
        write_store(tmp_path / name, POINTS, made(40, 300), per_shard=15, commit_bytes=20_000)
    assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")


def test_a_shard_takes_little_more_than_its_records(tmp_path):
    write_store(tmp_path, POINTS, made(50, 5000), per_shard=50, commit_bytes=1 << 20)
    shard = tmp_path / "shards" / "00000.lmdb"
    records = int(open_store(tmp_path).index.read(0, 50)["record_bytes"].sum())
    assert shard.stat().st_size < 1.05 * records
    assert shard.stat().st_blocks * 512 <= 1.05 * shard.stat().st_size


def test_one_huge_record_among_tiny_ones(tmp_path):
    samples = made(20, 1)
    samples[7] = MadeSample("0007", "train", {"points": np.ones((2_000_000, 4), np.float32), "pose": np.eye(4)})
    write_store(tmp_path, POINTS, samples, per_shard=20)
    store = open_store(tmp_path)
    assert store.read(7)["points"].shape == (2_000_000, 4)
    assert store.read(8)["points"].shape == (1, 4)


def test_an_empty_dataset_opens(tmp_path):
    write_store(tmp_path, POINTS, [])
    store = open_store(tmp_path)
    assert len(store.index) == len(store.names) == 0


def test_a_shard_swapped_for_another_datasets_of_equal_size_is_noticed(tmp_path):
    write_store(tmp_path / "a", POINTS, made(5, 50, seed=1))
    write_store(tmp_path / "b", POINTS, made(5, 50, seed=2))
    shard = "shards/00000.lmdb"
    assert (tmp_path / "a" / shard).stat().st_size == (tmp_path / "b" / shard).stat().st_size
    os.replace(tmp_path / "b" / shard, tmp_path / "a" / shard)
    with pytest.raises(CorruptError, match="header checksum") as caught:
        open_store(tmp_path / "a").read(0, check=False)
    assert (caught.value.shard, caught.value.sample) == (shard, "0000")


def test_a_file_cut_while_it_is_open_is_an_error(tmp_path):
    write_store(tmp_path, POINTS, made(3, 1000), per_shard=3)
    store = open_store(tmp_path)
    store.read(2)
    shard = tmp_path / "shards" / "00000.lmdb"
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(CorruptError, match="nothing at byte"):
        store.read(2)
    with pytest.raises(CorruptError, match="cut short"):
        store.read(0)


@pytest.mark.parametrize("file", ["index.npy", "names.npy", "names.bin"])
@pytest.mark.parametrize("how", ["missing", "cut", "longer", "empty"])
def test_damaged_side_files_are_named(tmp_path, file, how):
    write_store(tmp_path, POINTS, made(30))
    path = tmp_path / file
    data = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes({"cut": data[:-5], "longer": data + b"\0", "empty": b""}[how])
    with pytest.raises(CorruptError, match=file):
        store = open_store(tmp_path)
        store.read(0), store.names[0]


def test_index_rows_are_never_trusted(tmp_path):
    """Every flipped byte of the index gives an error or right data, never a crash or wrong arrays."""
    ordered = write_store(tmp_path, POINTS, made(2, 6))
    path = tmp_path / "index.npy"
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        with pytest.raises(CorruptError, match=r"index\.npy: bytes 0 on are not"):
            open_store(tmp_path).read(0), open_store(tmp_path).read(1)
        rebind(tmp_path)
        try:
            store = open_store(tmp_path)
        except CorruptError:  # the header of the .npy file
            continue
        for number in range(2):
            try:
                arrays = store.read(number)
            except CorruptError:
                continue
            assert all(same(arrays[name], ordered[number].arrays[name]) for name in arrays)
            assert list(arrays) == ["points", "pose"]
        del store


def test_reads_leave_no_trace_in_the_folder(tmp_path):
    write_store(tmp_path / "d", POINTS, made(3))
    marker = tmp_path / "marker"
    marker.touch()
    store = open_store(tmp_path / "d")
    for number in range(3):
        store.read(number)
    newer = subprocess.run(["find", tmp_path / "d", "-newer", marker, "-type", "f"], capture_output=True, check=True)
    assert newer.stdout == b""


@pytest.mark.parametrize(
    "wrong",
    [
        lambda entries: [replace(entry, offset=entry.offset + 2) for entry in entries],
        lambda entries: [replace(entry, nbytes=entry.nbytes - 1) for entry in entries],
        lambda entries: entries[:-1],
        lambda entries: [*entries, entries[-1]],
        lambda entries: [replace(entries[0], key=b"\0" * 7 + b"\7"), *entries[1:]],
    ],
    ids=["offset", "size", "fewer", "more", "key"],
)
def test_a_walk_that_differs_from_lmdb_stops_the_writing(tmp_path, monkeypatch, wrong):
    walk = pages.walk
    monkeypatch.setattr(pages, "walk", lambda fd: wrong(list(walk(fd))))
    schema = Schema((Field("points", "array", "float32", (4,), rows="points"),))
    made = [MadeSample(f"s{n}", "train", {"points": np.ones((n * 200, 4), "f4")}) for n in range(4)]
    with pytest.raises(CorruptError, match="damaged as soon as it was written") as caught:
        write_store(tmp_path, schema, made)
    assert caught.value.shard == "shards/00000.lmdb"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

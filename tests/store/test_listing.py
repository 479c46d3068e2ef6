"""What is listed of samples is what their records hold, in order, and damage is named."""

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload import PackedDataset
from fastload.errors import CorruptError, DatasetNotFoundError, UsageError
from fastload.schema import Field, Schema
from fastload.store import listing
from fastload.store.files import describe_blocks
from fastload.store.listing import list_names, list_samples
from fastload.store.manifest import read_manifest, write_manifest
from fastload.store.reader import open_store
from tests.support import MadeSample, rebind, run_python, samples_of, schemas, write_store

POINTS = Schema((Field("points", "array", "float32", (4,), "points"), Field("pose", "array", "float64", (4, 4))))


def scan(name, count, split="train"):
    return MadeSample(name, split, {"points": np.zeros((count, 4), np.float32), "pose": np.eye(4)})


@pytest.fixture
def root(tmp_path):
    samples = [scan(f"{i:03d}", i % 7, ("train", "val")[i % 3 == 0]) for i in range(50)]
    write_store(tmp_path / "d", POINTS, samples, per_shard=9)
    return tmp_path / "d"


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_any_samples_of_any_schema_are_listed_as_they_are(data, block):
    schema = data.draw(schemas())
    samples = data.draw(samples_of(schema))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_BLOCK_SAMPLES", block)
        ordered = write_store(Path(folder) / "d", schema, samples)
        store = open_store(Path(folder) / "d")
        infos = list(list_samples(Path(folder) / "d"))
        assert list(list_names(Path(folder) / "d")) == [sample.name for sample in ordered]
    assert len(infos) == len(ordered)
    for number, (info, sample) in enumerate(zip(infos, ordered, strict=True)):
        assert (info.name, info.split, info.index, info.number) == (sample.name, sample.split, number, number)
        present = [name for name in schema.names if name in sample.arrays]
        assert info.fields == {name: sample.arrays[name].shape for name in present}
        assert info.fields == {place.name: place.shape for place in store.places(number)}
        counts = [len(sample.arrays[name]) for name in present if schema[name].per_point]
        assert info.points == (counts[0] if counts else None)
        assert json.loads(json.dumps(info.to_json()))["points"] == info.points


def test_a_split_is_counted_from_its_start_as_a_dataset_does(root):
    for split in (None, "train", "val"):
        dataset = PackedDataset(root, split)
        infos = list(list_samples(root, split))
        assert infos == [dataset.info(i) for i in range(len(dataset))]
        assert [info.name for info in infos] == list(list_names(root, split)) == list(dataset.names)
        assert [info.points for info in infos] == dataset.counts.tolist()
        assert [info.index for info in infos] == list(range(len(dataset)))
    assert [info.number for info in list_samples(root, "val")] == list(range(33, 50))


def test_numbers_that_no_split_has_are_left_out_and_the_order_is_that_of_the_numbers(root):
    manifest = read_manifest(root)
    store = open_store(root)
    splits = {"b": ((0, 10), (30, 40)), "a": ((12, 30), (41, 50))}
    parts = replace(manifest, splits=splits)
    ranges = sorted((*part, split) for split, split_parts in parts.splits.items() for part in split_parts)
    numbers = [number for start, stop, _ in ranges for number in range(start, stop)]
    store.manifest = parts
    try:
        infos = list(list_samples(root))
    finally:
        store.manifest = manifest
    assert [info.number for info in infos] == numbers
    assert [info.index for info in infos] == list(range(len(numbers)))
    assert {info.split for info in infos if info.number in (*range(10), *range(30, 40))} == {"b"}


def test_what_cannot_be_listed_is_said_at_once(root, tmp_path):
    for function in (list_samples, list_names):
        with pytest.raises(UsageError, match=r"split 'x': .*d has the splits train, val; choose one of them"):
            function(root, "x")
        with pytest.raises(DatasetNotFoundError):
            function(tmp_path)


def test_an_empty_dataset_has_no_samples(tmp_path):
    write_store(tmp_path / "d", POINTS, [])
    assert list(list_samples(tmp_path / "d")) == list(list_names(str(tmp_path / "d"))) == []


def save(path, array):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(3, 0))


def many(root, count):
    """A dataset whose index has the row of one sample `count` times."""
    write_store(root, POINTS, [scan("0", 5)])
    save(root / "index.npy", np.repeat(np.load(root / "index.npy"), count))
    (root / "names.bin").write_bytes(b"".join(b"%06d" % number for number in range(count)))
    save(root / "names.npy", np.arange(0, 6 * count + 1, 6, dtype="<u8"))
    manifest = read_manifest(root)
    files = [describe_blocks(root, file) for file in ("index.npy", "names.bin", "names.npy")]
    shards = tuple(replace(shard, samples=count) for shard in manifest.shards)
    write_manifest(
        root,
        replace(
            manifest, samples=count, splits={"train": ((0, count),)}, shards=shards, index=files[0],
            names=(files[1], files[2]),
        ),
    )  # fmt: skip
    return root


def test_damaged_names_and_rows_are_named(root):
    names = (root / "names.bin").read_bytes()
    (root / "names.bin").write_bytes(names[:-1] + b"x")
    for function in (list_samples, list_names):
        with pytest.raises(CorruptError, match=r"names\.bin: bytes 0 on are not those that were written"):
            list(function(root))


@pytest.mark.parametrize(("row", "value"), [(3, 2**40), (3, 0), (50, 2**63), (50, 1)])
def test_starts_of_names_are_never_trusted(root, row, value):
    starts = np.load(root / "names.npy")
    starts[row] = value
    save(root / "names.npy", starts)
    rebind(root)
    for function in (list_samples, list_names):
        with pytest.raises(CorruptError, match=r"names\.bin: names (0 to 33|33 to 50) from"):
            list(function(root))


@pytest.mark.parametrize(
    ("column", "value"),
    [("shard", 4_000_000), ("record_bytes", 3), ("rows_points", 2**32 - 1), ("offset", 2**63), ("present", 0)],
)
def test_rows_that_cannot_be_right_are_named_and_those_before_are_given(root, column, value):
    rows = np.load(root / "index.npy")
    rows[column][40] = value
    save(root / "index.npy", rows)
    rebind(root)
    infos = list_samples(root)
    assert [info.number for info in itertools.islice(infos, 40)] == list(range(40))
    with pytest.raises(CorruptError, match=r"index\.npy: row 40"):
        next(infos)
    assert len(list(list_names(root))) == 50


def test_fields_that_the_schema_does_not_have_are_not_listed(root):
    rows = np.load(root / "index.npy")
    rows["present"] |= 1 << 63
    save(root / "index.npy", rows)
    rebind(root)
    assert {tuple(info.fields) for info in list_samples(root)} == {("points", "pose")}


def test_names_are_read_in_pieces(root):
    names = open_store(root).names
    every = [names[number] for number in range(50)]
    for start, stop in itertools.combinations_with_replacement(range(51), 2):
        assert names.read(start, stop) == every[start:stop]
    with pytest.raises(IndexError):
        names.read(0, 51)


def test_a_long_list_is_never_in_memory_as_a_whole(tmp_path):
    """Index and names of 300,000 samples take 40 MB as Python objects, 18 MB as files."""
    code = """
import resource, sys
from pathlib import Path
from fastload.store.listing import list_samples
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
samples = list_samples(sys.argv[1])
next(samples)
before = peak()
count = 1 + sum(1 for _ in samples)
assert count == int(sys.argv[2]), count
assert peak() - before < 8_000_000, peak() - before
assert "torch" not in sys.modules
"""
    done = run_python(code, many(tmp_path / "d", 300_000), 300_000)
    assert done.returncode == 0, done.stderr

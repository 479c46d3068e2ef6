"""Verify: every damage is found and named, and none ends the process."""

import json
import os
import shutil

import numpy as np
import pytest

import fastload
from fastload.errors import CorruptError, DatasetNotFoundError, VersionError
from fastload.store.reader import open_store
from tests.support import run_fastload, run_python, tree_bytes


@pytest.fixture
def dataset(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "d")
    return tmp_path / "d"


def flip(path, position, bits=0x10):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ bits]))


def place_of(root, number, field):
    """File and position of the first byte of a field."""
    store = open_store(root)
    row = store.index[number]
    place = next(place for place in store.places(number) if place.name == field)
    return root / store.manifest.shards[int(row["shard"])].file, int(row["offset"]) + place.offset


def test_a_whole_dataset_is_ok(packed):
    report = fastload.verify(packed)
    assert report.ok
    assert report.problems == ()
    assert report.samples == 6
    assert report.bytes > fastload.info(packed).source_bytes
    assert fastload.verify(packed, quick=True).ok


@pytest.mark.parametrize("field", ["points", "semantic", "instance", "pose", "time"])
def test_a_flipped_byte_in_any_field_is_found_and_named(dataset, field):
    path, position = place_of(dataset, 2, field)
    flip(path, position + 3)
    (problem,) = fastload.verify(dataset).problems
    assert (problem.kind, problem.field, problem.index) == ("checksum", field, 2)
    assert problem.sample == open_store(dataset).names[2]
    assert problem.shard == f"shards/{path.name}"
    with pytest.raises(CorruptError) as caught:
        fastload.PackedDataset(dataset)[2]
    assert (caught.value.shard, caught.value.sample, caught.value.field) == (problem.shard, problem.sample, field)
    if field == "pose":
        assert fastload.PackedDataset(dataset, fields=["points"])[2]["points"].size


def test_several_damages_are_all_listed(dataset):
    for number, field in ((0, "points"), (0, "semantic"), (5, "points")):
        path, position = place_of(dataset, number, field)
        flip(path, position)
    found = fastload.verify(dataset).problems
    assert [(p.index, p.field) for p in found] == [(0, "points"), (0, "semantic"), (5, "points")]


def test_every_byte_of_a_small_record_counts(tmp_path):
    """Each flipped byte of prefix, header, fields and padding is found by verify and by reading."""
    from tests.store.test_store import POINTS, made
    from tests.support import same, write_store

    ordered = write_store(tmp_path, POINTS, made(3, 300), per_shard=3)
    row = open_store(tmp_path).index[1].copy()
    shard = tmp_path / "shards/00000.lmdb"
    start, size = int(row["offset"]), int(row["record_bytes"])
    header = 32 + int(row["header_bytes"])
    positions = [*range(header + 64), *range(header + 64, size, 97), *range(size - 200, size)]
    for position in positions:
        flip(shard, start + position)
        with pytest.raises(CorruptError):
            open_store(tmp_path).read(1)
        assert all(same(open_store(tmp_path).read(n)["points"], ordered[n].arrays["points"]) for n in (0, 2))
        if position % 13 == 0:
            report = fastload.verify(tmp_path)
            assert {problem.index for problem in report.problems} == {1}, position
        flip(shard, start + position)
    assert fastload.verify(tmp_path).ok


def test_flips_outside_the_records_are_found_by_verify_and_never_give_wrong_data(tmp_path):
    from tests.store.test_store import POINTS, made
    from tests.support import same, write_store

    ordered = write_store(tmp_path, POINTS, made(2, 2), per_shard=2)
    shard = tmp_path / "shards/00000.lmdb"
    size = shard.stat().st_size
    for position in range(0, size, 3):
        flip(shard, position)
        report = fastload.verify(tmp_path)
        assert not report.ok, position
        for number in range(2):
            try:
                arrays = open_store(tmp_path).read(number)
            except CorruptError:
                continue
            assert same(arrays["points"], ordered[number].arrays["points"])
        flip(shard, position)


CUTS = """
import sys, os, fastload
root, size = sys.argv[1], int(sys.argv[2])
try:
    for sample in fastload.PackedDataset(root):
        pass
except fastload.CorruptError as error:
    print(error.shard)
else:
    sys.exit(9)
report = fastload.verify(root)
assert not report.ok and report.problems[0].shard == "shards/00000.lmdb", report
"""


@pytest.mark.parametrize("keep", [0, 4096, 8192, 0.5, -4096, -1])
@pytest.mark.parametrize("pad", [False, True])
def test_a_cut_shard_is_an_error_and_no_signal(dataset, keep, pad):
    shard = dataset / "shards/00000.lmdb"
    size = shard.stat().st_size
    os.truncate(shard, int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep)
    if pad:
        os.truncate(shard, size)
        if keep == -1 and shard.read_bytes()[-1:] == (dataset / "shards/00000.lmdb").read_bytes()[-1:]:
            pytest.skip("the last byte was zero already")
    done = run_python(CUTS, dataset, 0)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.strip() == "shards/00000.lmdb"
    command = run_fastload("verify", dataset)
    assert command.returncode == 1
    assert "shards/00000.lmdb" in command.stderr
    assert "Traceback" not in command.stderr


def test_a_missing_shard_is_named_and_the_others_can_be_read(dataset):
    (dataset / "shards/00001.lmdb").unlink()
    (problem,) = fastload.verify(dataset).problems
    assert (problem.kind, problem.shard) == ("missing", "shards/00001.lmdb")
    loaded = fastload.PackedDataset(dataset)
    by_shard = {}
    for index in range(len(loaded)):
        by_shard.setdefault(loaded.info(index).shard, index)
    with pytest.raises(CorruptError, match=r"00001\.lmdb: the shard is missing"):
        loaded[by_shard["shards/00001.lmdb"]]
    assert loaded[by_shard["shards/00000.lmdb"]]["points"].size


def test_swapped_shards_are_found(dataset):
    shards = dataset / "shards"
    os.rename(shards / "00000.lmdb", shards / "x")
    os.rename(shards / "00001.lmdb", shards / "00000.lmdb")
    os.rename(shards / "x", shards / "00001.lmdb")
    report = fastload.verify(dataset)
    assert {"shards/00000.lmdb", "shards/00001.lmdb"} <= {problem.shard for problem in report.problems}


@pytest.mark.parametrize("file", ["index.npy", "names.bin", "names.npy"])
def test_damaged_side_files_are_found(dataset, file):
    path = dataset / file
    flip(path, path.stat().st_size - 2)
    found = fastload.verify(dataset, quick=True).problems
    assert [problem.shard for problem in found][:1] == [file]
    path.unlink()
    assert fastload.verify(dataset).problems[0].kind == "missing"


def test_a_manifest_from_the_future_is_refused_everywhere(dataset):
    path = dataset / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    for call in (fastload.verify, fastload.info, lambda root: len(fastload.PackedDataset(root))):
        with pytest.raises(VersionError, match="99"):
            call(dataset)
    for verb in ("verify", "info"):
        done = run_fastload(verb, dataset)
        assert (done.returncode, done.stdout) == (1, "")
        assert "format version 99" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_damaged_manifest_is_a_finding(dataset):
    flip(dataset / "dataset.json", 300)
    report = fastload.verify(dataset)
    assert [problem.kind for problem in report.problems] == ["manifest"]
    (dataset / "dataset.json").unlink()
    assert "unfinished pack" in fastload.verify(dataset).problems[0].found


def test_what_is_no_folder_is_an_error(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        fastload.verify(tmp_path / "nowhere")


def test_verify_changes_nothing(packed):
    before = {name: os.stat(packed / name).st_mtime_ns for name in tree_bytes(packed)}
    fastload.verify(packed)
    assert before == {name: os.stat(packed / name).st_mtime_ns for name in tree_bytes(packed)}


def test_an_attachment_that_is_damaged_is_found(dataset):
    shard = sorted((dataset / "shards").iterdir())[-1]
    data = shard.read_bytes()
    position = data.index(b"P0:")
    flip(shard, position)
    (problem,) = fastload.verify(dataset).problems
    assert problem.kind == "checksum"
    assert problem.sample in ("sequences/00/calib.txt", "sequences/08/calib.txt")
    assert problem.field == "data"
    with pytest.raises(CorruptError, match="attachment"):
        fastload.unpack(dataset, dataset.parent / "again")


def test_nothing_read_is_trusted_with_memory(dataset):
    """A row count of billions in a damaged index is an error, not an allocation."""
    store = open_store(dataset)
    column = store.index.dtype.fields["rows_points"][1]
    start = (dataset / "index.npy").stat().st_size - len(store.index) * store.index.dtype.itemsize
    flip(dataset / "index.npy", start + column + 3, 0x7F)
    loaded = fastload.PackedDataset(dataset)
    assert loaded.counts[0] > 2**30
    with pytest.raises(CorruptError, match=r"index\.npy"):
        loaded[0]
    assert np.array_equal(loaded[1]["points"], loaded[1]["points"])

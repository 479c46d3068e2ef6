"""Verify: every damage is found and named, and none ends the process."""

import contextlib
import errno
import functools
import itertools
import json
import os
import shutil
from dataclasses import replace

import lmdb
import numpy as np
import pytest

import fastload
from fastload.errors import CorruptError, DatasetNotFoundError, VersionError
from fastload.store.manifest import Manifest, _checksum, read_manifest, write_manifest
from fastload.store.reader import open_store
from fastload.store.record import ATTACHMENT_BIT
from tests.support import rebind, run_fastload, run_python, tree_bytes


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


CUT_WHILE_OPEN = """
import os, sys, fastload
root, file = sys.argv[1:]
dataset = fastload.PackedDataset(root)
dataset[0], dataset.counts
os.truncate(os.path.join(root, file), 0)
for use in (lambda: dataset[1], lambda: dataset.counts, lambda: dataset.names[2], lambda: dataset.find("x")):
    try:
        use()
    except fastload.CorruptError as error:
        assert error.shard and os.path.basename(file) in str(error), error
    except fastload.SampleError:
        pass
assert not fastload.verify(root).ok
"""


@pytest.mark.parametrize("file", ["index.npy", "names.npy", "names.bin", "shards/00000.lmdb"])
def test_files_that_are_cut_while_they_are_open_are_errors_and_no_signal(dataset, file):
    done = run_python(CUT_WHILE_OPEN, dataset, file)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("fields", [None, ("semantic",), ("pose",), ("points",)])
@pytest.mark.parametrize("limit", [1, 100])
def test_a_dataset_packed_anew_under_a_reader_is_old_data_or_one_error(tmp_path, monkeypatch, fields, limit):
    """Also where only a field far from the record's head is read, and the shard was closed in between."""
    from fastload.store.descriptors import TABLE
    from tests.support import write_tree

    monkeypatch.setattr(TABLE, "limit", limit)
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 2000 for i in range(4)})
    folder = source / "sequences/00"
    (folder / "calib.txt").write_text("Tr: 1 0 0 0 0 1 0 0 0 0 1 0\n")
    (folder / "poses.txt").write_text("1 0 0 5 0 1 0 6 0 0 1 7\n" * 4)
    fastload.pack(source, tmp_path / "d", shard_size=50_000)
    reader = fastload.PackedDataset(tmp_path / "d", fields=fields)
    old = list(reader)
    for label in folder.glob("labels/*"):
        np.full(2000, 40, "<u4").tofile(label)
    (folder / "poses.txt").write_text("1 0 0 1 0 1 0 2 0 0 1 3\n" * 4)
    for scan in folder.glob("velodyne/*"):
        np.full((2000, 4), 3.5, "<f4").tofile(scan)
    fastload.pack(source, tmp_path / "d", shard_size=50_000, overwrite=True)
    for index, before in enumerate(old):
        try:
            now = reader[index]
        except CorruptError:
            continue
        assert all(np.array_equal(now[name], before[name]) for name in before)


def test_a_dataset_that_was_opened_but_not_read_keeps_to_what_it_opened(tmp_path):
    """Names, counts and samples are the old ones, or an error, whatever is packed to the folder meanwhile."""
    from tests.support import write_tree

    write_tree(tmp_path / "a", {f"00/{i:06d}": 200 for i in range(4)}, seed=1)
    write_tree(tmp_path / "b", {f"03/{i:06d}": 200 for i in range(4)}, seed=2)
    fastload.pack(tmp_path / "a", tmp_path / "d")
    fastload.pack(tmp_path / "a", tmp_path / "old")
    opened = fastload.PackedDataset(tmp_path / "d")
    part = opened.subset([2, 3])
    assert (len(opened), len(part)) == (4, 2)
    fastload.pack(tmp_path / "b", tmp_path / "d", overwrite=True)
    assert list(opened.names) == list(fastload.PackedDataset(tmp_path / "old").names)
    for index in range(4):
        with pytest.raises(CorruptError):
            opened[index]
    with pytest.raises(CorruptError):
        part[0]
    assert fastload.PackedDataset(tmp_path / "d")[0]["name"].startswith("sequences/03")


@pytest.mark.parametrize("file", ["index.npy", "names.bin", "names.npy"])
def test_names_and_counts_are_never_read_from_a_damaged_file(dataset, file):
    right = fastload.PackedDataset(dataset)
    names, counts = list(right.names), right.counts.tolist()
    del right
    size = (dataset / file).stat().st_size
    for position in range(0, size, max(1, size // 40)):
        flip(dataset / file, position)
        loaded = fastload.PackedDataset(dataset)
        for use, wanted in ((lambda d: list(d.names), names), (lambda d: d.counts.tolist(), counts)):
            try:
                assert use(loaded) == wanted
            except CorruptError as error:
                assert error.shard == file  # noqa: PT017 - either is right
        flip(dataset / file, position)


@pytest.mark.parametrize("column", ["offset", "shard", "header_bytes", "record_bytes", "rows_points", "present"])
def test_any_flipped_bit_of_an_index_row_is_a_clear_error_or_right_data(dataset, column):
    store = open_store(dataset)
    start = (dataset / "index.npy").stat().st_size - len(store.index) * store.index.dtype.itemsize
    kind, position = store.index.dtype.fields[column][:2]
    del store
    right = fastload.PackedDataset(dataset)[0]
    for bit in range(kind.itemsize * 8):
        flip(dataset / "index.npy", start + position + bit // 8, 1 << bit % 8)
        rebind(dataset)
        unpack = functools.partial(fastload.unpack, dataset, dataset.parent / "u")
        loaded = fastload.PackedDataset(dataset)
        for use in (functools.partial(loaded.__getitem__, 0), functools.partial(loaded.info, 0), unpack):
            try:
                found = use()
            except CorruptError:
                continue
            if isinstance(found, dict):
                assert all(np.array_equal(found[name], right[name]) for name in found)
            shutil.rmtree(dataset.parent / "u", ignore_errors=True)
        assert not fastload.verify(dataset, quick=True).ok
        flip(dataset / "index.npy", start + position + bit // 8, 1 << bit % 8)


def test_reads_of_more_than_two_gigabytes_go_on_where_they_stopped(dataset, monkeypatch):
    """The system gives at most 2 GiB at once; here at most 5,000 bytes."""
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, offset: real(fd, min(nbytes, 5000), offset))
    assert fastload.verify(dataset).ok
    fastload.unpack(dataset, dataset.parent / "out")
    assert len(list(fastload.PackedDataset(dataset))) == 6


@pytest.mark.parametrize("call", ["preadv", "pread"])
def test_a_disk_that_fails_is_named_with_file_and_sample(dataset, monkeypatch, call):
    loaded = fastload.PackedDataset(dataset)
    name = loaded.names[0]

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    len(loaded), loaded.names[0]
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(fastload.DatasetError, match=r"Input/output error") as caught:
        loaded[0]
    assert str(dataset) in str(caught.value)
    assert call == "pread" or name in str(caught.value)


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


@pytest.mark.parametrize(("keep", "pad"), [
    *((keep, False) for keep in (0, 4096, 8192, 0.5, -4096, -1)),
    *((keep, True) for keep in (0, 4096, 8192, 0.5, -4096)),
])  # fmt: skip
def test_a_cut_shard_is_an_error_and_no_signal(dataset, keep, pad):
    shard = dataset / "shards/00000.lmdb"
    size = shard.stat().st_size
    os.truncate(shard, int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep)
    if pad:
        os.truncate(shard, size)
    done = run_python(CUTS, dataset, 0)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.strip() == "shards/00000.lmdb"
    command = run_fastload("verify", dataset)
    assert command.returncode == 1
    assert "shards/00000.lmdb" in command.stderr
    assert pad or len(command.stderr.splitlines()) <= 5
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
    values = {**json.loads(path.read_text()), "format_version": 99}
    del values["checksum"]
    path.write_text(json.dumps({**values, "checksum": _checksum(values)}))
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
    assert "dataset.json is missing" in fastload.verify(dataset).problems[0].found


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
    del store
    flip(dataset / "index.npy", start + column + 3, 0x7F)
    rebind(dataset)
    loaded = fastload.PackedDataset(dataset)
    assert loaded.counts[0] > 2**30
    with pytest.raises(CorruptError, match=r"index\.npy"):
        loaded[0]
    assert np.array_equal(loaded[1]["points"], loaded[1]["points"])


@contextlib.contextmanager
def failing_reads(path, call, error, turn):
    """From its call number `turn` on, each such call for this file fails. Gives the count of calls."""
    inode = path.stat().st_ino
    calls = itertools.count()
    seen = []

    def concerns(what):
        return (os.fstat(what) if isinstance(what, int) else os.stat(what)).st_ino == inode

    real = getattr(os, call)

    def fail(what, *arguments, **options):
        if concerns(what):
            seen.append(next(calls))
            if seen[-1] >= turn:
                named = [] if isinstance(what, int) else [os.fspath(what)]
                raise OSError(error, os.strerror(error), *named)
        return real(what, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield seen


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("call", ["pread", "preadv", "open"])
@pytest.mark.parametrize("file", ["dataset.json", "index.npy", "names.bin", "names.npy", "shards/00000.lmdb"])
def test_what_the_disk_refuses_is_a_problem_wherever_it_begins(dataset, file, call, error, quick):
    """Each call of verify for the file in turn, and all after it, fails: nothing is raised, the file is named."""
    for turn in itertools.count():
        with failing_reads(dataset / file, call, error, turn) as seen:
            report = fastload.verify(dataset, quick=quick)
        if len(seen) <= turn:
            assert report.ok
            break
        assert not report.ok
        first = report.problems[0]
        assert (first.kind, first.shard) == ("unreadable", file), (turn, report.problems)
        assert os.strerror(error) in first.found
        assert {problem.shard for problem in report.problems} == {file}, (turn, report.problems)
    assert turn > 0 or call == "preadv"


def test_a_bad_sector_is_one_sample_and_the_others_are_looked_at(dataset, monkeypatch):
    path, position = place_of(dataset, 1, "points")
    damaged, elsewhere = place_of(dataset, 5, "points")
    flip(damaged, elsewhere)
    inode, real = path.stat().st_ino, os.pread

    def pread(fd, nbytes, offset):
        if os.fstat(fd).st_ino == inode and offset <= position < offset + nbytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    found = fastload.verify(dataset).problems
    assert [(problem.index, problem.kind) for problem in found] == [(1, "unreadable"), (5, "checksum")]


def test_a_shard_of_another_dataset_is_one_problem(tmp_path):
    """Equal names, counts and sizes, other values; other counts; another schema; damaged besides."""
    from tests.support import write_tree

    scans = {f"00/{i:06d}": 50 for i in range(12)}
    for name, counts, seed in (("a", scans, 1), ("b", scans, 2), ("c", {f"07/{i:06d}": 70 for i in range(9)}, 3)):
        write_tree(tmp_path / f"{name}.src", counts, seed=seed)
        fastload.pack(tmp_path / f"{name}.src", tmp_path / name, shard_size=6_000)
    shutil.rmtree(tmp_path / "c.src/sequences/07/labels")
    fastload.pack(tmp_path / "c.src", tmp_path / "unlabelled", shard_size=6_000)
    for other in ("b", "c", "unlabelled"):
        for damage in (False, True):
            shutil.rmtree(tmp_path / "d", ignore_errors=True)
            shutil.copytree(tmp_path / "a", tmp_path / "d")
            shutil.copy(tmp_path / other / "shards/00001.lmdb", tmp_path / "d/shards/00001.lmdb")
            if damage:
                flip(tmp_path / "d/shards/00001.lmdb", 2 * 4096 + 9)
            for quick in (False, True):
                report = fastload.verify(tmp_path / "d", quick=quick)
                (problem,) = report.problems if not damage else report.problems[-1:]
                assert problem.shard == "shards/00001.lmdb"
                assert len(report.problems) <= 4
                assert damage or problem.kind == "exchanged"
                assert damage or "of another dataset" in problem.found
                assert damage or "fastload repair" in problem.fix


def test_shards_under_each_others_names_are_one_problem_each(dataset):
    shards = dataset / "shards"
    (shards / "00000.lmdb").rename(shards / "x")
    (shards / "00001.lmdb").rename(shards / "00000.lmdb")
    (shards / "x").rename(shards / "00001.lmdb")
    for quick in (False, True):
        found = {problem.shard: problem for problem in fastload.verify(dataset, quick=quick).problems}
        assert len(fastload.verify(dataset, quick=quick).problems) == 2
        assert found["shards/00000.lmdb"].found == "the records of shards/00001.lmdb"
        assert found["shards/00001.lmdb"].found == "the records of shards/00000.lmdb"
        assert all("right names" in problem.fix for problem in found.values())


def test_one_record_of_another_dataset_is_that_sample_and_no_more(tmp_path):
    from tests.store.test_index import rewrite_record
    from tests.store.test_store import POINTS, made
    from tests.support import write_store

    samples = made(5, 10)
    write_store(tmp_path, POINTS, samples, per_shard=5)
    other = made(5, 10, seed=9)
    rewrite_record(tmp_path / "shards/00000.lmdb", 2, samples[2].name, other[2].arrays, split=samples[2].split)
    assert [problem.index for problem in fastload.verify(tmp_path, quick=True).problems] == [2]


@pytest.mark.parametrize("quick", [False, True])
def test_records_that_only_their_digest_tells_of_are_named_by_shard(tmp_path, quick):
    """An attachment of another dataset: no index row knows it."""
    from tests.store.test_index import rewrite_record
    from tests.store.test_store import POINTS, made
    from tests.support import write_store

    write_store(tmp_path, POINTS, made(3, 10), per_shard=3, attachments={"calib.txt": b"0 1"})
    assert fastload.verify(tmp_path, quick=quick).ok
    data = np.frombuffer(b"1 0", np.uint8)
    rewrite_record(tmp_path / "shards/00000.lmdb", ATTACHMENT_BIT, "calib.txt", {"data": data})
    size = (tmp_path / "shards/00000.lmdb").stat().st_size
    assert size == read_manifest(tmp_path).shards[0].bytes
    (problem,) = fastload.verify(tmp_path, quick=quick).problems
    assert (problem.kind, problem.shard) == ("digest", "shards/00000.lmdb")


def test_a_digest_of_records_that_the_manifest_only_claims_is_found(dataset):
    manifest = read_manifest(dataset)
    entry = replace(manifest.shards[1], records_xxh3="0" * 16)
    write_manifest(dataset, replace(manifest, shards=(manifest.shards[0], entry, *manifest.shards[2:])))
    for quick in (False, True):
        (problem,) = fastload.verify(dataset, quick=quick).problems
        assert (problem.kind, problem.shard) == ("digest", entry.file)


def test_a_shard_rewritten_by_another_tool_is_for_repair(dataset):
    """Its records are those that were packed."""
    shard = dataset / "shards/00000.lmdb"
    with lmdb.open(str(shard), subdir=False, lock=False, readonly=True) as env:
        env.copy(str(dataset / "copy"))
    data = (dataset / "copy").read_bytes()
    (dataset / "copy").unlink()
    shard.write_bytes(data + bytes(4096))
    found = fastload.verify(dataset).problems
    assert {problem.shard for problem in found} == {"shards/00000.lmdb"}
    assert all("rebuild its pages with: fastload repair" in problem.fix for problem in found)
    assert fastload.repair(dataset).ok
    assert fastload.verify(dataset).ok


def test_records_that_lie_nowhere_are_said_once(tmp_path):
    from tests.store.test_store import POINTS, made
    from tests.support import write_store

    write_store(tmp_path, POINTS, made(40, 10), per_shard=40)
    shard = tmp_path / "shards/00000.lmdb"
    shard.write_bytes(bytes(shard.stat().st_size))
    kinds = [problem.kind for problem in fastload.verify(tmp_path).problems]
    assert kinds == ["pages", "prefix"]


def test_totals_are_compared_also_where_something_else_is_wrong(dataset):
    manifest = read_manifest(dataset)
    path, position = place_of(dataset, 2, "points")
    flip(path, position)
    (dataset / "names.bin").unlink()
    wrong = {"points": 1, "source_bytes": 2}
    for key, by in wrong.items():
        write_manifest(dataset, replace(manifest, **{key: getattr(manifest, key) + by}))
        found = [(problem.kind, problem.index) for problem in fastload.verify(dataset).problems]
        assert found == [("missing", None), ("checksum", 2), ("manifest", None)]
    write_manifest(dataset, replace(manifest, present={**manifest.present, "pose": 0}))
    assert fastload.verify(dataset).problems[-1].kind == "manifest"
    write_manifest(dataset, manifest)
    assert [problem.kind for problem in fastload.verify(dataset).problems] == ["missing", "checksum"]


@pytest.mark.parametrize("how", ["missing", "foreign", "cut", "header"])
def test_totals_are_not_compared_where_records_could_not_be_counted(dataset, how):
    """A sum that lacks what is lost would blame the manifest."""
    path, _ = place_of(dataset, 0, "points")
    if how == "missing":
        path.unlink()
    elif how == "foreign":
        other = next(shard for shard in (dataset / "shards").iterdir() if shard != path)
        shutil.copy(other, path)
    elif how == "cut":
        os.truncate(path, 8192)
    else:
        flip(path, int(open_store(dataset).index[0]["offset"]) + 40)
    found = fastload.verify(dataset).problems
    assert {problem.shard for problem in found} == {f"shards/{path.name}"}


def test_numbers_of_a_forged_manifest_take_no_memory(dataset, monkeypatch):
    """It may say that a shard has billions of samples: no more numbers are made than there are records."""
    made = itertools.count()

    def numbers_of(self, shard):
        for number in range(shard.first, 2**62):
            assert next(made) < 1000
            yield number

    monkeypatch.setattr(Manifest, "numbers_of", numbers_of)
    assert not fastload.verify(dataset).ok

"""Repair: what can be rebuilt comes back byte for byte; what cannot is named, and left out only when asked."""

import errno
import itertools
import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastload
from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError, LockedError, UsageError, VersionError
from fastload.store import fs
from fastload.store.identity import Identity
from fastload.store.manifest import _checksum, read_manifest, write_manifest
from fastload.store.record import INFO_KEY, MAGIC, PREFIX, encode_record
from fastload.store.salvage import find_records
from tests.support import run_python, samples_of, schemas, tree_bytes, write_store, write_tree

SIDE_FILES = ("dataset.json", "index.npy", "names.bin", "names.npy")
SCANS = {"00/000000": 10, "00/000001": 500, "00/000002": 12, "00/000003": 700, "08/000000": 9, "08/000001": 300}
POSES = "1 0 0 0.5 0 1 0 0 0 0 1 0\n"
CALIB = "P0: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: 1 0 0 0 0 1 0 0 0 0 1 0\n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A dataset of 6 samples in several shards, the last of them with attachments. Not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    source = write_tree(folder / "source", SCANS)
    for sequence, count in (("00", 4), ("08", 2)):
        (source / "sequences" / sequence / "calib.txt").write_text(CALIB)
        (source / "sequences" / sequence / "poses.txt").write_text(POSES * count)
    fastload.pack(source, folder / "dataset", shard_size=20_000)
    return folder / "dataset"


@pytest.fixture
def dataset(sound, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(sound, tmp_path / "dataset")
    return tmp_path / "dataset"


def place_of(shard: Path, number: int) -> tuple[int, bytes]:
    """Where a record's value lies in the file, found by its bytes as LMDB gives them."""
    with lmdb.open(str(shard), subdir=False, lock=False, readonly=True) as env, env.begin() as transaction:
        value = transaction.get(number.to_bytes(8, "big"))
    return shard.read_bytes().index(value), value


def flip(path: Path, offset: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def damage_data(root: Path, name: str) -> int:
    """Flip a bit in the last bytes of a sample: its pose. Gives its number."""
    info = fastload.PackedDataset(root).info(fastload.PackedDataset(root).find(name))
    offset, value = place_of(root / info.shard, info.number)
    flip(root / info.shard, offset + len(value) - 1)
    return info.number


def damage_header(root: Path, name: str) -> int:
    info = fastload.PackedDataset(root).info(fastload.PackedDataset(root).find(name))
    offset, _ = place_of(root / info.shard, info.number)
    flip(root / info.shard, offset + 40)
    return info.number


def arrays_of(root: Path) -> dict[str, dict[str, np.ndarray]]:
    return {sample["name"]: {k: v for k, v in sample.items() if k not in ("name", "index")} for sample in
            fastload.PackedDataset(root)}  # fmt: skip


def kept_numbers(root: Path) -> list[int]:
    return [number for start, stop in read_manifest(root).kept for number in range(start, stop)]


def assert_holds(root: Path, sound: Path, lost: set[str]) -> None:
    """The dataset is sound and holds what the other does, but for what was lost."""
    assert fastload.verify(root).ok
    found, wanted = arrays_of(root), arrays_of(sound)
    assert list(found) == [name for name in wanted if name not in lost]
    for name, arrays in found.items():
        assert list(arrays) == list(wanted[name])
        assert all(np.array_equal(arrays[field], wanted[name][field]) for field in arrays)
    dataset = fastload.PackedDataset(root)
    assert [dataset.find(name) for name in dataset.names] == list(range(len(dataset)))
    assert sum(dataset.splits.values()) == len(dataset) == fastload.info(root).samples
    for split in dataset.splits:
        assert len(list(fastload.PackedDataset(root, split))) == dataset.splits[split]
    for name in lost:
        with pytest.raises(fastload.SampleError, match="no sample is called"):
            dataset.find(name)


@pytest.mark.parametrize("files", [c for n in range(1, 5) for c in itertools.combinations(SIDE_FILES, n)], ids="+".join)
@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_index_names_and_manifest_come_back_byte_for_byte(dataset, sound, files, how):
    for file in files:
        path = dataset / file
        if how == "missing":
            path.unlink()
        elif how == "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            flip(path, path.stat().st_size // 2)
    damaged = tree_bytes(dataset)
    report = fastload.repair(dataset)
    assert report.ok
    assert (report.samples, report.dropped, report.problems) == (6, (), ())
    assert set(report.rebuilt) == set(files)
    after = tree_bytes(dataset)
    assert {file: after.pop(file) for file in tree_bytes(sound)} == tree_bytes(sound)
    assert after == ({} if how == "missing" else {f"{file}.damaged": damaged[file] for file in files})
    assert set(report.set_aside) == set(after)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_dataset_comes_back_from_its_shards_alone(data):
    schema = data.draw(schemas())
    samples = data.draw(samples_of(schema, max_samples=7).filter(bool))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        write_store(root, schema, samples, per_shard=data.draw(st.integers(1, 4)), commit_bytes=4096)
        before = tree_bytes(root)
        for file in SIDE_FILES:
            (root / file).unlink()
        report = fastload.repair(root)
        assert report.ok
        assert tree_bytes(root) == before


def test_what_is_sound_is_left_as_it_is(dataset):
    before = {path: path.stat() for path in dataset.rglob("*")}
    report = fastload.repair(dataset)
    assert report.ok
    assert (report.rebuilt, report.set_aside, report.samples) == ((), (), 6)
    after = {path: path.stat() for path in dataset.rglob("*")}
    assert {p: (s.st_mtime_ns, s.st_ino) for p, s in after.items()} == {
        p: (s.st_mtime_ns, s.st_ino) for p, s in before.items()
    }


def test_options_of_the_layout_come_back(tmp_path):
    source = write_tree(tmp_path / "source", SCANS)
    fastload.pack(source, tmp_path / "d", splits={"b": ["00"], "a": ["08"]})
    before = tree_bytes(tmp_path / "d")
    for file in SIDE_FILES:
        (tmp_path / "d" / file).unlink()
    assert fastload.repair(tmp_path / "d").ok
    assert tree_bytes(tmp_path / "d") == before


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("damage", [damage_data, damage_header])
def test_a_damaged_sample_is_left_out_only_when_asked(dataset, sound, damage, with_manifest):
    name = "sequences/00/velodyne/000001"
    number = damage(dataset, name)
    if not with_manifest:
        for file in SIDE_FILES:
            (dataset / file).unlink()
    before = tree_bytes(dataset)
    report = fastload.repair(dataset)
    assert not report.ok
    assert not report.dropped
    (problem,) = report.problems
    assert problem.index == number
    assert problem.shard.startswith("shards/")
    assert "--drop-damaged" in problem.fix
    assert problem.sample == (None if damage is damage_header and not with_manifest else name)
    assert problem.field == ("pose" if damage is damage_data else None)
    assert {file: data for file, data in tree_bytes(dataset).items() if file in before} == before
    if (dataset / "dataset.json").exists():
        assert not fastload.verify(dataset).ok
        packed = fastload.PackedDataset(dataset)
        assert len(packed) == 6
        with pytest.raises(CorruptError):
            packed[packed.find(name)]
    else:
        assert damage is damage_header
        assert not with_manifest
        assert report.samples == 0

    report = fastload.repair(dataset, drop_damaged=True)
    assert report.ok
    assert report.samples == 5
    assert [problem.index for problem in report.dropped] == [number]
    assert_holds(dataset, sound, {name})
    assert tree_bytes(dataset)[f"{problem.shard}.damaged"] == before[problem.shard]
    with pytest.raises(UsageError, match=r"left out by fastload repair: 1 sample"):
        fastload.unpack(dataset, dataset.parent / "out")
    fastload.unpack(dataset, dataset.parent / "out", lossy_ok=True)
    assert len(list((dataset.parent / "out").rglob("*.bin"))) == 5


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_sample_that_was_left_out_is_back_with_its_file(dataset, sound, with_manifest):
    damage_data(dataset, "sequences/00/velodyne/000001")
    if not with_manifest:
        (dataset / "dataset.json").unlink()
    assert fastload.repair(dataset, drop_damaged=True).ok
    before = tree_bytes(dataset)
    for drop in (False, True):  # what was left out is not forgotten, and nothing is to be done
        again = fastload.repair(dataset, drop_damaged=drop)
        assert again.ok
        assert (again.rebuilt, again.dropped, again.samples) == ((), (), 5)
        assert "left out by fastload repair: 1 sample (earlier)" in again.notes[0]
    assert tree_bytes(dataset) == before
    for file in tree_bytes(sound):
        if file.startswith("shards/"):
            shutil.copy(sound / file, dataset / file)
    assert fastload.repair(dataset).ok
    assert {file: tree_bytes(dataset)[file] for file in tree_bytes(sound)} == tree_bytes(sound)


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("which", ["first", "middle", "last of samples", "last"])
def test_a_missing_shard_is_missed(dataset, sound, which, with_manifest):
    entries = read_manifest(sound).shards
    last = max(i for i, entry in enumerate(entries) if entry.samples)
    entry = entries[{"first": 0, "middle": 1, "last of samples": last, "last": len(entries) - 1}[which]]
    names = list(fastload.PackedDataset(sound).names)
    lost = set(names[entry.first : entry.first + entry.samples])
    (dataset / entry.file).unlink()
    if not with_manifest:
        for file in SIDE_FILES:
            (dataset / file).unlink()
    before = tree_bytes(dataset)
    report = fastload.repair(dataset)
    assert not report.ok
    assert [problem.kind for problem in report.problems] == ["missing"]
    assert tree_bytes(dataset) == before
    report = fastload.repair(dataset, drop_damaged=True)
    assert report.ok
    assert report.samples == 6 - entry.samples
    assert {problem.index for problem in report.dropped} - {None} == set(range(6)) - set(kept_numbers(dataset))
    if with_manifest:
        assert {problem.sample for problem in report.dropped} - {None} == lost
    assert_holds(dataset, sound, lost)
    assert fastload.info(dataset).lossy
    before = tree_bytes(dataset)
    for drop in (False, True):
        again = fastload.repair(dataset, drop_damaged=drop)
        assert again.ok
        assert again.dropped == ()
    assert tree_bytes(dataset) == before
    if with_manifest or which not in ("last",):
        shutil.copy(sound / entry.file, dataset / entry.file)
        assert fastload.repair(dataset).ok
        assert {file: tree_bytes(dataset)[file] for file in tree_bytes(sound)} == tree_bytes(sound)


@pytest.mark.parametrize("with_manifest", [True, False])
def test_pages_are_rebuilt_around_sound_records(dataset, sound, with_manifest):
    """The header of each page in turn wiped out: meta, branch, leaf pages and the first page of a large value."""
    shard = dataset / "shards/00000.lmdb"
    if not with_manifest:
        for file in SIDE_FILES:
            (dataset / file).unlink()
    whole = shard.read_bytes()
    pages = [p for p in range(len(whole) // 4096) if int.from_bytes(whole[p * 4096 : p * 4096 + 8], "little") == p]
    assert len(pages) >= 4  # two meta pages, a leaf, the beginning of a large value
    for page in pages:
        data = bytearray(whole)
        data[page * 4096 : page * 4096 + 16] = bytes(16)
        shard.write_bytes(data)
        report = fastload.repair(dataset)
        assert report.ok, (page, report)
        assert_holds(dataset, sound, set())
        assert shard.read_bytes() == whole or page not in (0, 1)
    if with_manifest:
        assert {file: tree_bytes(dataset)[file] for file in tree_bytes(sound)} == tree_bytes(sound)


def test_a_cut_shard_gives_back_what_lies_before_the_cut(dataset, sound):
    entry = read_manifest(sound).shards[0]
    names = list(fastload.PackedDataset(sound).names)[: entry.samples]
    shard = dataset / entry.file
    for size in range(0, entry.bytes, 4096):
        shutil.rmtree(dataset)
        shutil.copytree(sound, dataset)
        shard.write_bytes(shard.read_bytes()[:size])
        report = fastload.repair(dataset)
        assert not report.ok or size >= entry.bytes - 4096
        report = fastload.repair(dataset, drop_damaged=True)
        assert report.ok
        lost = {name for name in names if name not in fastload.PackedDataset(dataset).names}
        assert_holds(dataset, sound, lost)
        assert {problem.sample for problem in report.dropped if problem.sample} >= lost


def test_damaged_attachments_are_left_out_only_when_asked(dataset, sound):
    entry = next(entry for entry in read_manifest(sound).shards if entry.attachments)
    data = (dataset / entry.file).read_bytes()
    flip(dataset / entry.file, data.index(b"Tr: 1 0"))
    report = fastload.repair(dataset)
    assert not report.ok
    assert "calib.txt" in report.problems[0].found
    report = fastload.repair(dataset, drop_damaged=True)
    assert report.ok
    assert report.samples == 6
    assert "1 attachment" in fastload.info(dataset).lossy[0]
    assert_holds(dataset, sound, set())
    assert fastload.unpack(dataset, dataset.parent / "out", lossy_ok=True).attachments == entry.attachments - 1
    before = tree_bytes(dataset)
    for drop in (False, True):
        assert fastload.repair(dataset, drop_damaged=drop).ok
    assert tree_bytes(dataset) == before
    shutil.copy(sound / entry.file, dataset / entry.file)
    assert fastload.repair(dataset).ok
    assert {file: tree_bytes(dataset)[file] for file in tree_bytes(sound)} == tree_bytes(sound)


def other_dataset(folder: Path, **scans: int) -> Path:
    source = write_tree(folder / "other", scans or SCANS, seed=5)
    fastload.pack(source, folder / "others", shard_size=20_000)
    return folder / "others"


def test_a_manifest_of_another_dataset_is_not_used(dataset, sound, tmp_path):
    other = other_dataset(tmp_path, **{"03/000000": 30})
    shutil.copy(other / "dataset.json", dataset / "dataset.json")
    report = fastload.repair(dataset)
    assert report.ok
    assert "another dataset" in report.notes[0]
    assert (dataset / "dataset.json").read_bytes() == (sound / "dataset.json").read_bytes()


def test_a_swapped_shard_of_equal_samples_is_not_taken_for_ours(dataset, sound, tmp_path):
    """Same names, same counts, other points: only index and digest can tell."""
    other = other_dataset(tmp_path)
    shutil.copy(other / "shards/00000.lmdb", dataset / "shards/00000.lmdb")
    before = tree_bytes(dataset)
    report = fastload.repair(dataset)
    assert not report.ok
    assert tree_bytes(dataset) == before
    (dataset / "index.npy").unlink()
    report = fastload.repair(dataset)
    assert not report.ok
    assert any(problem.shard == "shards/00000.lmdb" and problem.kind == "digest" for problem in report.problems)
    assert not fastload.verify(dataset).ok


@pytest.mark.parametrize(
    "scans",
    [
        {"03/000000": 30, "03/000001": 500, "03/000002": 700},
        {name.replace("00/", "03/", 1): n for name, n in SCANS.items()},
    ],
    ids=["other numbers", "same numbers, other names"],
)
@pytest.mark.parametrize("drop", [False, True])
def test_a_shard_of_another_dataset_is_named(dataset, tmp_path, scans, drop):
    other = other_dataset(tmp_path, **scans)
    for file in SIDE_FILES:
        (dataset / file).unlink()
    shutil.copy(other / "shards/00001.lmdb", dataset / "shards/00001.lmdb")
    before = tree_bytes(dataset)
    with pytest.raises(DatasetError, match=r"shards/00001\.lmdb.*shards of two datasets\?"):
        fastload.repair(dataset, drop_damaged=drop)
    assert tree_bytes(dataset) == before


def test_a_shard_rewritten_by_another_tool_is_taken_up(dataset, sound):
    """`mdb_copy -c` moves every value: the offsets change, the records do not."""
    shard = dataset / "shards/00000.lmdb"
    with lmdb.open(str(shard), subdir=False, lock=False, readonly=True) as env:
        env.copy(str(dataset / "copied"), compact=True)
    if (dataset / "copied").is_dir():
        (dataset / "copied/data.mdb").replace(shard)
        shutil.rmtree(dataset / "copied")
    else:
        (dataset / "copied").replace(shard)
    report = fastload.repair(dataset)
    assert report.ok
    assert_holds(dataset, sound, set())


def test_an_unfinished_pack_is_finished_only_when_all_is_there(dataset, sound):
    for file in SIDE_FILES:
        (dataset / file).unlink()
    mark = fs.temporary(dataset / "dataset.json")
    mark.touch()
    last = dataset / read_manifest(sound).shards[-1].file
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(DatasetNotFoundError, match="unfinished pack"):
        fastload.repair(dataset)
    last.write_bytes(kept)
    assert fastload.repair(dataset).ok
    assert tree_bytes(dataset) == tree_bytes(sound)


def test_what_cannot_be_repaired_says_so(tmp_path, dataset):
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        fastload.repair(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetNotFoundError, match="no shards"):
        fastload.repair(tmp_path / "empty")
    values = {**json.loads((dataset / "dataset.json").read_text()), "format_version": 99}
    del values["checksum"]
    (dataset / "dataset.json").write_text(json.dumps({**values, "checksum": _checksum(values)}))
    with pytest.raises(VersionError):
        fastload.repair(dataset, drop_damaged=True)
    for shard in (dataset / "shards").iterdir():
        shard.write_bytes(bytes(shard.stat().st_size))
    (dataset / "dataset.json").unlink()
    with pytest.raises(DatasetError, match=r"nothing says what\s+the dataset is"):
        fastload.repair(dataset, drop_damaged=True)


def test_nothing_sound_left_is_an_error_and_nothing_is_written(dataset):
    for shard in (dataset / "shards").iterdir():
        shard.write_bytes(bytes(shard.stat().st_size))
    before = tree_bytes(dataset)
    assert not fastload.repair(dataset).ok
    with pytest.raises(DatasetError, match="none of its samples is sound"):
        fastload.repair(dataset, drop_damaged=True)
    assert tree_bytes(dataset) == before


def test_a_locked_folder_is_refused(dataset):
    with fs.lock_folder(dataset), pytest.raises(LockedError):
        fastload.repair(dataset)


@pytest.mark.parametrize("drop", [False, True])
def test_a_dry_run_says_what_would_be_done_and_writes_nothing(dataset, drop):
    damage_data(dataset, "sequences/00/velodyne/000001")
    (dataset / "names.npy").unlink()
    before = tree_bytes(dataset)
    planned = fastload.repair(dataset, drop_damaged=drop, dry_run=True)
    assert tree_bytes(dataset) == before
    assert planned.dry_run
    done = fastload.repair(dataset, drop_damaged=drop)
    assert (planned.ok, planned.samples, planned.dropped, planned.problems) == (
        done.ok, done.samples, done.dropped, done.problems
    )  # fmt: skip
    assert set(planned.rebuilt) == set(done.rebuilt)


def test_names_set_aside_are_never_written_over(dataset):
    for turn in range(3):
        (dataset / "names.npy").write_bytes(b"turn %d" % turn)
        assert fastload.repair(dataset).ok
    kept = sorted(path.name for path in dataset.glob("names.npy.damaged*"))
    assert kept == ["names.npy.damaged", "names.npy.damaged-2", "names.npy.damaged-3"]
    assert [(dataset / name).read_bytes() for name in kept] == [b"turn 0", b"turn 1", b"turn 2"]


def test_an_index_that_is_a_folder_is_moved_aside(dataset, sound):
    (dataset / "index.npy").unlink()
    (dataset / "index.npy").mkdir()
    assert fastload.repair(dataset).ok
    assert (dataset / "index.npy").read_bytes() == (sound / "index.npy").read_bytes()
    assert (dataset / "index.npy.damaged").is_dir()


def test_a_manifest_that_vouches_for_damage_does_not_hide_it(dataset):
    """Rebuilt over a damaged shard, the manifest has that file's digest."""
    damage_data(dataset, "sequences/00/velodyne/000001")
    (dataset / "dataset.json").unlink()
    assert not fastload.repair(dataset).ok
    assert not fastload.repair(dataset).ok
    assert not fastload.verify(dataset).ok


def test_dropped_numbers_in_a_manifest_are_held_to_the_rest(dataset):
    damage_data(dataset, "sequences/00/velodyne/000001")
    fastload.repair(dataset, drop_damaged=True)
    manifest = read_manifest(dataset)
    assert manifest.dropped == ((1, 2),)
    assert manifest.numbers == 6
    assert manifest.kept == ((0, 1), (2, 6))
    for wrong in (((0, 1),), ((1, 3),), (), ((1, 2), (5, 6))):
        write_manifest(dataset, replace(manifest, dropped=wrong))
        with pytest.raises(CorruptError, match="not a whole manifest"):
            read_manifest(dataset)


CHILD = """
import sys
import fastload
print("started", flush=True)
fastload.repair(sys.argv[1], drop_damaged=True)
"""


@pytest.mark.parametrize("call", ["replace", "fsync", "link", "write"])
def test_a_repair_that_fails_anywhere_can_be_run_again(dataset, sound, call, monkeypatch):
    """Each replacement, sync and link in turn ends the repair as a kill would; then it is run again."""
    name = "sequences/00/velodyne/000001"
    damage_data(dataset, name)
    for file in ("index.npy", "dataset.json"):
        (dataset / file).unlink()
    start = tree_bytes(dataset)
    for turn in itertools.count():
        with monkeypatch.context() as patch:
            calls = itertools.count()

            def fail(*arguments, real, calls=calls, turn=turn, **options):
                if next(calls) == turn:
                    raise KeyboardInterrupt
                return real(*arguments, **options)

            if call == "replace":
                real = Path.replace
                patch.setattr(Path, "replace", lambda *a, real=real, f=fail, **k: f(*a, real=real, **k))
            elif call == "write":
                real = fs._write_new
                patch.setattr(fs, "_write_new", lambda *a, real=real, f=fail, **k: f(*a, real=real, **k))
            else:
                real = getattr(os, call)
                patch.setattr(os, call, lambda *a, real=real, f=fail, **k: f(*a, real=real, **k))
            try:
                fastload.repair(dataset, drop_damaged=True)
                done = True
            except KeyboardInterrupt:
                done = False
        kept = tree_bytes(dataset)
        for file, data in start.items():  # nothing is lost at any instant
            assert kept.get(file) == data or kept.get(f"{file}.damaged") == data, (turn, file)
        assert fastload.repair(dataset, drop_damaged=True).ok
        assert_holds(dataset, sound, {name})
        if done:
            break
        shutil.rmtree(dataset)
        for file, data in start.items():
            (dataset / file).parent.mkdir(parents=True, exist_ok=True)
            (dataset / file).write_bytes(data)
    assert turn >= 1


def test_a_shard_that_is_as_packed_is_never_written_anew(tmp_path):
    """Also where its info record says nothing that this program understands."""
    samples = samples_of_points(tmp_path, info={"schema": []})
    before = tree_bytes(tmp_path / "d")
    assert fastload.repair(tmp_path / "d").ok
    assert tree_bytes(tmp_path / "d") == before
    (tmp_path / "d/index.npy").unlink()
    assert fastload.repair(tmp_path / "d").ok
    assert tree_bytes(tmp_path / "d") == before
    (tmp_path / "d/dataset.json").unlink()
    with pytest.raises(DatasetError, match="nothing says what the dataset is"):
        fastload.repair(tmp_path / "d")
    assert samples == 3


def samples_of_points(folder: Path, info: dict[str, object]) -> int:
    """A dataset whose shard has this info record. Gives how many samples it has."""
    source = write_tree(folder / "source", {"00/000000": 5, "00/000001": 6, "00/000002": 7})

    def record(self, buffer=None):
        return encode_record(INFO_KEY, "", {}, meta=info, buffer=buffer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Identity, "record", record)
        return fastload.pack(source, folder / "d").samples


def test_a_killed_repair_can_be_run_again(dataset, sound):
    name = "sequences/00/velodyne/000001"
    damage_data(dataset, name)
    (dataset / "dataset.json").unlink()
    code = "import os, signal, threading\n" + CHILD.replace(
        'print("started", flush=True)',
        "threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()",
    )
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        assert run_python(code, dataset, delay).returncode in (0, -9)
    assert fastload.repair(dataset, drop_damaged=True).ok
    assert_holds(dataset, sound, {name})


def drop_side_files(root: Path) -> None:
    for file in SIDE_FILES:
        (root / file).unlink()


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
@pytest.mark.parametrize("then", [None, "fsync", "replace"])
def test_without_links_what_is_replaced_is_copied(dataset, sound, monkeypatch, error, then):
    """At no instant nothing lies under a shard's name, also where a later step fails."""
    shard = dataset / "shards/00000.lmdb"
    flip(shard, 4096)
    damaged = shard.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", lambda *a, **k: (_ for _ in ()).throw(OSError(error, os.strerror(error))))
        if then == "fsync":
            patch.setattr(fs, "publish", lambda *a: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        if then == "replace":
            patch.setattr(fs, "set_aside", kill_after(fs.set_aside))
        if then is None:
            assert fastload.repair(dataset).ok
        else:
            with pytest.raises((OSError, KeyboardInterrupt)):
                fastload.repair(dataset)
            assert shard.read_bytes() == damaged
    assert fastload.repair(dataset).ok
    assert shard.read_bytes() == (sound / "shards/00000.lmdb").read_bytes()
    kept = [path.read_bytes() for path in (dataset / "shards").glob("00000.lmdb.damaged*")]
    assert damaged in kept or then == "fsync"


def kill_after(function):
    def killed(*arguments):
        function(*arguments)
        raise KeyboardInterrupt

    return killed


def test_a_shard_in_doubt_stays_in_doubt(dataset, sound, tmp_path):
    """Same names, counts and sizes, other values, and no index to tell: not taken, however often it is tried."""
    other = other_dataset(tmp_path)
    shutil.copy(other / "shards/00000.lmdb", dataset / "shards/00000.lmdb")
    (dataset / "index.npy").unlink()
    before = tree_bytes(dataset)
    for _ in range(2):
        report = fastload.repair(dataset)
        assert not report.ok
        assert "move dataset.json away" in report.problems[0].fix
        assert tree_bytes(dataset) == before
    entry = read_manifest(sound).shards[0]
    lost = set(list(fastload.PackedDataset(sound).names)[: entry.samples])
    for drop in (True, False, True):
        assert fastload.repair(dataset, drop_damaged=drop).ok
        assert_holds(dataset, sound, lost)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("with_index", [False, True])
def test_a_foreign_shard_that_was_left_out_stays_out(dataset, sound, tmp_path, damaged, with_index):
    other = other_dataset(tmp_path)
    shutil.copy(other / "shards/00000.lmdb", dataset / "shards/00000.lmdb")
    if damaged:
        offset, _ = place_of(dataset / "shards/00000.lmdb", 1)
        flip(dataset / "shards/00000.lmdb", offset + 40)
    if not with_index:
        (dataset / "index.npy").unlink()
    lost = set(list(fastload.PackedDataset(sound).names)[: read_manifest(sound).shards[0].samples])
    for drop in (True, False, True):
        assert fastload.repair(dataset, drop_damaged=drop).ok
        assert_holds(dataset, sound, lost)


@pytest.mark.parametrize("drop", [False, True])
def test_shards_under_each_others_names_are_to_be_renamed(dataset, drop):
    one, two = dataset / "shards/00000.lmdb", dataset / "shards/00001.lmdb"
    one.rename(dataset / "one")
    two.rename(one)
    (dataset / "one").rename(two)
    before = tree_bytes(dataset)
    with pytest.raises(DatasetError, match=r"00000\.lmdb says that it is shards/00001\.lmdb.*right names"):
        fastload.repair(dataset, drop_damaged=drop)
    drop_side_files(dataset)
    with pytest.raises(DatasetError):
        fastload.repair(dataset, drop_damaged=drop)
    assert {file: data for file, data in before.items() if file.startswith("shards/")} == tree_bytes(dataset)


@pytest.mark.parametrize("name", ["20231201.lmdb", "99999999999999999999999.lmdb", "00003.lmdb.bak", "3.lmdb"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_files_beside_the_shards_are_named_and_left_alone(dataset, sound, name, with_manifest):
    shutil.copy(dataset / "shards/00001.lmdb", dataset / "shards" / name)
    if not with_manifest:
        drop_side_files(dataset)
    report = fastload.repair(dataset)
    assert report.ok
    assert any(name in note for note in report.notes)
    assert (dataset / "shards" / name).exists()
    assert {file: tree_bytes(dataset)[file] for file in tree_bytes(sound)} == tree_bytes(sound)


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_bad_sector_costs_what_lies_on_it(dataset, sound, monkeypatch, with_manifest):
    name = "sequences/00/velodyne/000001"
    info = fastload.PackedDataset(dataset).info(1)
    offset, value = place_of(dataset / info.shard, 1)
    sector = range(offset + len(value) // 2, offset + len(value) // 2 + 512)
    inode = (dataset / info.shard).stat().st_ino
    if not with_manifest:
        drop_side_files(dataset)

    def refuse(real, start, length, fd):
        if os.fstat(fd).st_ino == inode and start < sector.stop and sector.start < start + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pread(fd, length, start, real=os.pread):
        refuse(real, start, length, fd)
        return real(fd, length, start)

    def preadv(fd, buffers, start, real=os.preadv):
        refuse(real, start, sum(map(len, buffers)), fd)
        return real(fd, buffers, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        patch.setattr(os, "preadv", preadv)
        patch.setattr("fastload.store.salvage._CHUNK_BYTES", 4096)
        patch.setattr("fastload.store.salvage._RETRY_BYTES", 4096)
        report = fastload.repair(dataset)
        assert not report.ok
        assert {problem.index for problem in report.problems} == {1}
        assert "cannot be read" in report.problems[0].found
        report = fastload.repair(dataset, drop_damaged=True)
    assert report.ok
    assert_holds(dataset, sound, {name})


@pytest.mark.parametrize(
    "change", [{"samples": 2**40}, {"attachments": 2**40}, {"first": 2**30}, {"options": {"a": b"x"}}]
)
def test_numbers_made_to_do_harm_are_refused_at_once(tmp_path, monkeypatch, change):
    to_meta = Identity.to_meta
    with monkeypatch.context() as patch:
        patch.setattr(Identity, "to_meta", lambda self: {**to_meta(self), **change})
        fastload.pack(write_tree(tmp_path / "source", {"00/000000": 5, "00/000001": 6}), tmp_path / "d")
    drop_side_files(tmp_path / "d")
    for drop in (False, True):
        with pytest.raises(DatasetError):
            fastload.repair(tmp_path / "d", drop_damaged=drop)


@pytest.mark.parametrize(
    "content",
    [MAGIC * (1 << 18), PREFIX.pack(MAGIC, 1, 0, 1, (1 << 20) - 48, 1 << 20, 0) * (1 << 15)],
    ids=["marks", "prefixes of large headers"],
)
def test_marks_made_to_do_harm_are_looked_through_in_time(tmp_path, content):
    path = tmp_path / "shard"
    path.write_bytes(content)
    started = time.monotonic()
    with path.open("rb") as file:
        assert list(find_records(file.fileno())) == []
    assert time.monotonic() - started < 20

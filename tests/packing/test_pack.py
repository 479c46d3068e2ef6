"""Packing: what goes in comes out; what is bad is named, all of it, and nothing is published."""

import json
import os
import shutil
import time

import numpy as np
import pytest

import fastload
from fastload.errors import LockedError, SourceError, UsageError
from tests.support import run_fastload, tree_bytes, write_tree

BIN = "sequences/00/velodyne/000000.bin"


def pack(source, out, **options):
    return fastload.pack(source, out, layout="semantickitti", **options)


@pytest.fixture
def source(tmp_path):
    return write_tree(tmp_path / "source", {"00/000000": 24, "00/000001": 7, "01/000000": 100, "08/000000": 12})


def problems_of(source, out, **options):
    with pytest.raises(SourceError) as caught:
        pack(source, out, **options)
    assert not out.exists()
    return caught.value.problems


def test_report_says_what_was_packed(source, tmp_path):
    (source / "notes.txt").write_text("mine")
    report = pack(source, tmp_path / "out")
    assert (report.samples, report.points, report.shards) == (4, 143, 1)
    assert report.splits == {"train": 3, "val": 1}
    assert report.source_bytes == 143 * 20
    assert report.ignored == ("notes.txt",)
    assert report.problems == ()
    assert json.loads(json.dumps(report.to_json()))["schema"] == "fastload.pack/1"


def test_arrays_are_the_files_values(source, tmp_path):
    pack(source, tmp_path / "out")
    dataset = fastload.PackedDataset(tmp_path / "out")
    for sample in dataset:
        raw = np.fromfile(source / f"{sample['name']}.bin", "<f4").reshape(-1, 4)
        label = np.fromfile(source / f"{sample['name']}.label".replace("velodyne", "labels"), "<u4")
        assert np.array_equal(sample["points"], raw)
        assert np.array_equal(sample["semantic"], label & 0xFFFF)
        assert np.array_equal(sample["instance"], label >> 16)


def test_unpack_gives_the_same_tree(scans, tmp_path):
    report = pack(scans, tmp_path / "out", shard_size=200_000)
    assert report.shards > 2
    assert report.ignored == ()
    fastload.unpack(tmp_path / "out", tmp_path / "again")
    assert tree_bytes(tmp_path / "again") == tree_bytes(scans)


def test_two_packs_are_byte_identical(scans, tmp_path):
    shutil.copytree(scans, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    pack(scans, tmp_path / "a", shard_size=200_000)
    pack(tmp_path / "elsewhere", tmp_path / "b", shard_size="200kB")
    assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")


def test_not_a_number_is_packed_losslessly_and_counted(source, tmp_path):
    path = source / "sequences/01/velodyne/000000.bin"
    points = np.fromfile(path, "<u4")
    points[5], points[11], points[20] = 0x7FC00001, 0x7F800001, 0x7F800000  # NaNs with payloads, infinity
    points.tofile(path)
    report = pack(source, tmp_path / "out")
    assert report.nonfinite == 3
    assert any("3 NaN or infinite values in 1 samples" in note for note in report.notes)
    fastload.unpack(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again/sequences/01/velodyne/000000.bin").read_bytes() == path.read_bytes()


def test_all_bad_files_come_in_one_report(source, tmp_path):
    velodyne = source / "sequences/00/velodyne"
    (velodyne / "000000.bin").write_bytes(bytes(24 * 16))  # all zero: found only by reading
    (velodyne / "000001.bin").write_bytes(b"\1" * 113)  # size: found by the listing
    labels = source / "sequences/01/labels/000000.label"
    labels.write_bytes(labels.read_bytes()[:99])
    np.save(tmp_path / "x.npy", np.ones((11, 4), np.float32))
    shutil.copy(tmp_path / "x.npy", source / "sequences/08/velodyne/000000.bin")
    found = problems_of(source, tmp_path / "out")
    assert sorted(problem.path for problem in found) == [
        "sequences/00/velodyne/000000.bin",
        "sequences/00/velodyne/000001.bin",
        "sequences/01/labels/000000.label",
        "sequences/08/velodyne/000000.bin",
    ]
    assert any("NumPy .npy" in problem.found for problem in found)
    assert all(problem.expected and problem.fix for problem in found)


def test_bad_content_alone_publishes_nothing_and_leaves_nothing(source, tmp_path):
    (source / "sequences/08/velodyne/000000.bin").write_bytes(bytes(12 * 16))
    assert len(problems_of(source, tmp_path / "out", shard_size=1)) == 1


def test_skip_bad_packs_the_rest_and_lists_them(source, tmp_path):
    (source / "sequences/00/velodyne/000000.bin").write_bytes(bytes(24 * 16))
    (source / "sequences/00/velodyne/000001.bin").write_bytes(b"\1" * 113)
    report = pack(source, tmp_path / "out", skip_bad=True)
    assert report.samples == 2
    assert {problem.sample for problem in report.problems} == {
        "sequences/00/velodyne/000000",
        "sequences/00/velodyne/000001",
    }
    assert list(fastload.PackedDataset(tmp_path / "out").names) == [
        "sequences/01/velodyne/000000",
        "sequences/08/velodyne/000000",
    ]
    assert fastload.verify(tmp_path / "out").ok


def test_skip_bad_with_nothing_left_is_an_error(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 24})
    (source / "sequences/00/velodyne/000000.bin").write_bytes(b"")
    assert len(problems_of(source, tmp_path / "out", skip_bad=True)) == 1


def test_force_packs_values_that_look_wrong(source, tmp_path):
    path = source / "sequences/00/velodyne/000000.bin"
    np.random.default_rng(0).uniform(2e5, 9e6, (24, 4)).astype("<f4").tofile(path)
    found = problems_of(source, tmp_path / "out")
    assert "e+06 m" in found[0].found
    assert "x y z in metres" in found[0].expected
    report = pack(source, tmp_path / "out", force=True)
    assert report.samples == 4
    assert [problem.path for problem in report.problems] == ["sequences/00/velodyne/000000.bin"]
    name = "sequences/00/velodyne/000000"
    dataset = fastload.PackedDataset(tmp_path / "out")
    assert dataset[dataset.find(name)]["points"].tobytes() == path.read_bytes()


@pytest.mark.parametrize("make", ["fifo", "folder", "dangling", "loop"])
def test_what_is_no_regular_file_is_named(source, tmp_path, make):
    path = source / "sequences/00/velodyne/000000.bin"
    path.unlink()
    if make == "fifo":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    elif make == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.symlink_to(path)
    with pytest.raises(SourceError, match="000000"):
        pack(source, tmp_path / "out")


def test_links_to_files_and_folders_are_followed(source, tmp_path):
    shutil.move(source / "sequences/01", tmp_path / "elsewhere")
    (source / "sequences/01").symlink_to(tmp_path / "elsewhere")
    path = source / "sequences/00/velodyne/000000.bin"
    shutil.move(path, tmp_path / "scan")
    path.symlink_to(tmp_path / "scan")
    assert pack(source, tmp_path / "out").samples == 4


def test_a_folder_that_links_to_its_parent_ends(source, tmp_path):
    (source / "sequences/00/again").symlink_to(source)
    assert pack(source, tmp_path / "out").samples == 4


def test_names_that_are_no_utf8_pack_and_unpack(source, tmp_path):
    folder = source / "sequences/00"
    os.rename(folder, os.fsencode(source / "sequences") + b"/0\xff")
    splits = {"train": [os.fsdecode(b"0\xff"), 1, "08"]}
    pack(source, tmp_path / "out", splits=splits)
    fastload.unpack(tmp_path / "out", tmp_path / "again")
    assert tree_bytes(tmp_path / "again") == tree_bytes(source)


def test_splits_can_be_set(source, tmp_path):
    report = pack(source, tmp_path / "a", splits={"fit": [0, "08"], "check": ["01"]})
    assert report.splits == {"check": 1, "fit": 3}
    (tmp_path / "splits.yaml").write_text("fit: [0, 8]\ncheck: ['01']\n")
    pack(source, tmp_path / "b", splits=tmp_path / "splits.yaml")
    assert tree_bytes(tmp_path / "a") == tree_bytes(tmp_path / "b")


def test_samples_are_ordered_by_split_and_name(tmp_path):
    source = write_tree(tmp_path / "source", {f"{s}/{i:06d}": 5 for s in ("08", "00", "11", "10") for i in (2, 0, 10)})
    for folder in (source / "sequences").iterdir():
        if folder.name == "11":
            shutil.rmtree(folder / "labels")
    pack(source, tmp_path / "out")
    names = list(fastload.PackedDataset(tmp_path / "out").names)
    sequences = [name.split("/")[1] for name in names]
    assert sequences == ["11"] * 3 + ["00"] * 3 + ["10"] * 3 + ["08"] * 3  # test, train, val
    assert names[:3] == [f"sequences/11/velodyne/{i:06d}" for i in (0, 2, 10)]


def test_an_existing_dataset_is_replaced_only_on_request(source, tmp_path):
    pack(source, tmp_path / "out")
    before = tree_bytes(tmp_path / "out")
    with pytest.raises(UsageError, match="--overwrite"):
        pack(source, tmp_path / "out")
    assert tree_bytes(tmp_path / "out") == before
    shutil.rmtree(source / "sequences/01")
    assert pack(source, tmp_path / "out", overwrite=True).samples == 3
    assert fastload.verify(tmp_path / "out").ok


@pytest.mark.parametrize("content", [b"\1" * 113, bytes(24 * 16)])
def test_a_failed_overwrite_keeps_the_old_dataset(source, tmp_path, content):
    pack(source, tmp_path / "out")
    before = tree_bytes(tmp_path / "out")
    (source / "sequences/00/velodyne/000000.bin").write_bytes(content)
    with pytest.raises(SourceError):
        pack(source, tmp_path / "out", overwrite=True)
    assert tree_bytes(tmp_path / "out") == before


@pytest.mark.parametrize("left", ["shards/00007.lmdb", "shards/.tmp-00001.lmdb", "index.npy", ".tmp-dataset.json"])
def test_leftovers_of_an_unfinished_pack_are_cleared(source, tmp_path, left):
    path = tmp_path / "out" / left
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    (tmp_path / "out/.tmp-dataset.json").touch()  # the mark of a pack that was begun
    pack(source, tmp_path / "out")
    pack(source, tmp_path / "clean")
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "clean")


@pytest.mark.parametrize("other", ["my thesis.txt", "shards/7", "shards/00000.lmdb", "index.npy", ".tmp-index.npy"])
def test_a_folder_with_other_things_is_not_touched(source, tmp_path, other):
    path = tmp_path / "out" / other
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="no pack was begun in it"):
            pack(source, tmp_path / "out", overwrite=overwrite)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("text", ["", "{}", '{"labels": {"1": "car"}}', "[1, 2]"])
def test_another_programs_dataset_json_is_not_touched(source, tmp_path, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/dataset.json").write_text(text)
    (tmp_path / "out/index.npy").write_bytes(b"precious")
    before = tree_bytes(tmp_path / "out")
    with pytest.raises(UsageError, match="not fastload's"):
        pack(source, tmp_path / "out", overwrite=True)
    assert tree_bytes(tmp_path / "out") == before


def test_files_beside_a_dataset_stay_when_it_is_replaced(source, tmp_path):
    pack(source, tmp_path / "out")
    (tmp_path / "out/README.txt").write_text("mine")
    (tmp_path / "out/shards/notes.txt").write_text("mine")
    pack(source, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/README.txt").read_text() == (tmp_path / "out/shards/notes.txt").read_text() == "mine"


def test_a_second_pack_into_the_same_folder_is_refused(source, tmp_path):
    refused = []

    def start_another(progress):
        with pytest.raises(LockedError, match="another fastload is writing"):
            pack(source, tmp_path / "out")
        done = run_fastload("pack", source, tmp_path / "out")
        refused.append((done.returncode, "another fastload is writing" in done.stderr))

    pack(source, tmp_path / "out", progress=start_another)
    assert refused == [(1, True)] * 4
    pack(source, tmp_path / "clean")
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "clean")


def test_a_shard_that_somebody_else_wrote_to_is_noticed(source, tmp_path, monkeypatch):
    """On file systems without locks two packs may meet: a shard is held against its plan once it has its name."""
    from fastload.store import fs

    other = write_tree(tmp_path / "other", {"00/000000": 9})
    pack(other, tmp_path / "theirs")
    real = fs.publish

    def publish(path):
        if path.name == "00000.lmdb":
            shutil.copy(tmp_path / "theirs/shards/00000.lmdb", fs.temporary(path))
        real(path)

    monkeypatch.setattr(fs, "publish", publish)
    with pytest.raises(fastload.DatasetError, match="something else writes to this folder"):
        pack(source, tmp_path / "out")
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_disk_that_is_too_small_is_said_before_anything_is_removed(source, tmp_path, monkeypatch):
    from fastload.store import fs

    pack(source, tmp_path / "out")
    before = tree_bytes(tmp_path / "out")
    monkeypatch.setattr(fs, "free_bytes", lambda path: 100)
    big = write_tree(tmp_path / "big", {"00/000000": 100_000})
    with pytest.raises(fastload.ResourceError, match=r"2 MB needed, .* free"):
        pack(big, tmp_path / "out", overwrite=True)
    assert tree_bytes(tmp_path / "out") == before
    with pytest.raises(fastload.ResourceError):
        pack(big, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_with_a_second_name_do_not_count_as_room(source, tmp_path, monkeypatch):
    from fastload.store import fs

    big = write_tree(tmp_path / "big", {"00/000000": 10_000})
    pack(big, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "snapshot", copy_function=os.link)
    before = tree_bytes(tmp_path / "out")
    monkeypatch.setattr(fs, "free_bytes", lambda path: 10_000)
    with pytest.raises(fastload.ResourceError, match="no space"):
        pack(big, tmp_path / "out", overwrite=True)
    assert tree_bytes(tmp_path / "out") == before


@pytest.mark.root
@pytest.mark.parametrize("kind", [("ramfs", ""), ("tmpfs", "size=0")])
def test_a_file_system_that_does_not_tell_its_space_is_packed_to(source, tmp_path, kind):
    import subprocess

    (tmp_path / "mount").mkdir()
    options = ["-o", kind[1]] if kind[1] else []
    done = subprocess.run(["mount", "-t", kind[0], *options, "none", str(tmp_path / "mount")], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount {kind[0]} here: {done.stderr.decode().strip()}")
    try:
        assert pack(source, tmp_path / "mount/out").samples == 4
    finally:
        subprocess.run(["umount", str(tmp_path / "mount")], check=True)


@pytest.mark.parametrize("trouble", ["unreadable size", "grows"])
def test_a_bad_attachment_is_found_before_an_old_dataset_is_removed(source, tmp_path, trouble):
    calibration = source / "sequences/00/calib.txt"
    calibration.write_text("P0: 1 0 0 0 0 1 0 0 0 0 1 0\n")
    pack(source, tmp_path / "out")
    before = tree_bytes(tmp_path / "out")
    progress = None
    if trouble == "unreadable size":
        calibration.unlink()
        calibration.symlink_to("/proc/version")  # a size of 0, and bytes
    else:

        def progress(step):
            with calibration.open("a") as file:
                file.write("# one more line\n")

    with pytest.raises(SourceError, match=r"calib\.txt"):
        pack(source, tmp_path / "out", overwrite=True, progress=progress)
    assert tree_bytes(tmp_path / "out") == before
    if trouble == "unreadable size":
        report = pack(source, tmp_path / "out", overwrite=True, skip_bad=True)
        assert [problem.path for problem in report.problems] == ["sequences/00/calib.txt"]
        assert fastload.verify(tmp_path / "out").ok


def test_a_folder_of_the_users_stays_when_a_pack_fails(source, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o750)
    (source / "sequences/08/velodyne/000000.bin").write_bytes(bytes(12 * 16))
    with pytest.raises(SourceError):
        pack(source, tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()
    assert not list((tmp_path / "mine").iterdir())


def test_a_lock_on_a_folder_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    import fcntl

    from fastload.store import fs

    (tmp_path / "d").mkdir()
    real = fcntl.flock

    def slow(fd, operation):
        if operation & fcntl.LOCK_EX:
            (tmp_path / "d").rmdir()
            (tmp_path / "d").mkdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    with pytest.raises(LockedError), fs.lock_folder(tmp_path / "d"):
        raise AssertionError("not reached")


def test_a_lock_ends_with_the_pack_though_a_forked_child_lives_on(source, tmp_path):
    children = []

    def fork(progress):
        if not children:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            children.append(pid)

    try:
        pack(source, tmp_path / "out", progress=fork)
        pack(source, tmp_path / "out", overwrite=True)
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    assert fastload.verify(tmp_path / "out").ok


@pytest.mark.parametrize("code", ["ENOLCK", "EOPNOTSUPP", "EBADF"])
def test_a_file_system_without_locks_is_packed_to(source, tmp_path, monkeypatch, code):
    import errno
    import fcntl

    def refuse(fd, operation):
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert pack(source, tmp_path / "out").samples == 4


def test_a_dangling_link_as_output_is_named(source, tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="a link to something that is not there"):
        pack(source, tmp_path / "out")


def test_the_longest_names_pack_and_unpack(source, tmp_path):
    folder = source / "sequences/11/velodyne"
    folder.mkdir(parents=True)
    for name in ("a" * 251 + ".bin", "ä" * 125 + ".bin"):
        shutil.copy(source / BIN, folder / name)
    pack(source, tmp_path / "out")
    fastload.unpack(tmp_path / "out", tmp_path / "again")
    assert tree_bytes(tmp_path / "again") == tree_bytes(source)


def test_the_source_itself_is_refused_as_output(source, tmp_path):
    for out in (source, tmp_path, source / "sequences" / ".."):
        with pytest.raises(UsageError, match="is the source, or holds it"):
            pack(source, out, overwrite=True)
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(UsageError, match="is the source"):
        pack(source, tmp_path / "link")


def test_an_output_inside_the_source_is_no_source(source, tmp_path):
    report = pack(source, source / "packed")
    assert report.ignored == ()
    assert pack(source, source / "packed", overwrite=True).ignored == ()


@pytest.mark.parametrize(("size", "message"), [("0", "not a positive size"), ("many", "not a size"), (-1, "positive"),
                                               (1.5, "not a size"), ("5 parsecs", "not a size")])  # fmt: skip
def test_wrong_sizes_are_named(source, tmp_path, size, message):
    with pytest.raises(UsageError, match=f"shard_size.*{message}"):
        pack(source, tmp_path / "out", shard_size=size)


def test_unknown_layouts_and_options_are_named(source, tmp_path):
    with pytest.raises(UsageError, match="semantickitti"):
        fastload.pack(source, tmp_path / "out", layout="semantikitti")
    with pytest.raises(UsageError, match="colour"):
        pack(source, tmp_path / "out", colour="red")
    with pytest.raises(UsageError, match="no such folder"):
        pack(tmp_path / "nowhere", tmp_path / "out")


def test_progress_counts_to_the_end(source, tmp_path):
    seen = []
    pack(source, tmp_path / "out", progress=seen.append)
    assert [p.samples for p in seen] == [1, 2, 3, 4]
    assert seen[-1].done_bytes == seen[-1].total_bytes == 143 * 20


def test_a_source_that_changes_while_it_is_packed_is_noticed(source, tmp_path):
    def grow(progress):
        with open(source / "sequences/08/velodyne/000000.bin", "ab") as file:
            file.write(bytes(16))

    (problem,) = problems_of(source, tmp_path / "out", progress=grow)
    assert "does not change" in problem.expected
    assert problem.path == "sequences/08/velodyne/000000.bin"


def test_errors_survive_pickling(source, tmp_path):
    import pickle

    (source / "sequences/00/velodyne/000000.bin").write_bytes(b"\1" * 113)
    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "out")
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.problems == caught.value.problems
    assert str(again) == str(caught.value)


def test_a_record_in_lmdb_is_readable_by_its_own_tools(source, tmp_path):
    import lmdb

    pack(source, tmp_path / "out")
    with lmdb.open(str(tmp_path / "out/shards/00000.lmdb"), subdir=False, lock=False, readonly=True) as env:
        assert env.stat()["entries"] == 5  # four samples, and what the shard says of itself


def test_the_command_prints_every_bad_file_and_exits_1(source, tmp_path):
    (source / "sequences/00/velodyne/000001.bin").write_bytes(b"\1" * 113)
    (source / "sequences/00/velodyne/000000.bin").write_bytes(bytes(24 * 16))
    done = run_fastload("pack", source, tmp_path / "out", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert len(report["problems"]) == 2
    assert "sequences/00/velodyne/000001.bin" in done.stderr
    assert "Traceback" not in done.stderr

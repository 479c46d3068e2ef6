"""Unpack: the source files byte for byte, and nothing outside the folder."""

import errno
import itertools
import os
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest

import fastload
from fastload.errors import CorruptError, UsageError
from fastload.packing.unpack import safe_target
from fastload.schema import Field, Schema
from fastload.store import fs
from fastload.store.manifest import read_manifest, write_manifest
from fastload.store.record import StoredFile
from tests.support import MadeSample, run_fastload, tree_bytes, write_store


def test_the_whole_tree_comes_back(packed, scans, tmp_path):
    report = fastload.unpack(packed, tmp_path / "out")
    assert tree_bytes(tmp_path / "out") == tree_bytes(scans)
    assert (report.samples, report.attachments, report.files) == (6, 6, 18)
    assert report.bytes == sum(map(len, tree_bytes(scans).values()))


def test_one_split_with_its_attachments(packed, scans, tmp_path):
    report = fastload.unpack(packed, tmp_path / "out", split="val")
    assert report.samples == 3
    found = tree_bytes(tmp_path / "out")
    assert all(found[name] == data for name, data in tree_bytes(scans).items() if name.startswith("sequences/08"))
    assert not list((tmp_path / "out/sequences/00").glob("velodyne/*"))


def test_samples_by_pattern(packed, scans, tmp_path):
    fastload.unpack(packed, tmp_path / "out", names=["*/00/*/000001", "*/08/*/00000[02]"])
    names = set(tree_bytes(tmp_path / "out"))
    scans_of = {"00": ["000001"], "08": ["000000", "000002"]}
    expected = {
        f"sequences/{sequence}/{folder}/{stem}.{suffix}"
        for sequence, stems in scans_of.items()
        for stem in stems
        for folder, suffix in (("velodyne", "bin"), ("labels", "label"))
    }
    assert names == expected


def test_wrong_requests_are_named(packed, tmp_path):
    with pytest.raises(UsageError, match="train, val"):
        fastload.unpack(packed, tmp_path / "out", split="test")
    with pytest.raises(UsageError, match="names look like 'sequences/"):
        fastload.unpack(packed, tmp_path / "out", names=["nothing*"])
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused_unless_asked(packed, scans, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        fastload.unpack(packed, tmp_path / "out")
    fastload.unpack(packed, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/mine.txt").read_text() == "precious"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="a file is there"):
        fastload.unpack(packed, tmp_path / "file")


def test_a_link_in_the_output_does_not_lead_out_of_it(packed, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sequences").symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptError, match="leads out of"):
        fastload.unpack(packed, tmp_path / "out", overwrite=True)
    assert not list((tmp_path / "outside").rglob("*.bin"))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", ".", "a/\0b"])
def test_paths_that_would_leave_the_folder_are_refused(tmp_path, path):
    with pytest.raises(CorruptError, match="outside the folder"):
        safe_target(tmp_path, path)


def test_nothing_is_made_or_written_through_links_before_they_are_noticed(packed, tmp_path):
    outside = tmp_path / "outside"
    (tmp_path / "out/sequences/00/velodyne").mkdir(parents=True)
    outside.mkdir()
    (outside / "victim").write_text("precious")
    (tmp_path / "out/sequences/00/velodyne/.tmp-000000.bin").symlink_to(outside / "victim")
    (tmp_path / "out/sequences/08").symlink_to(outside)
    with pytest.raises(CorruptError, match="leads out of"):
        fastload.unpack(packed, tmp_path / "out", overwrite=True)
    assert [path.name for path in outside.rglob("*")] == ["victim"]
    assert (outside / "victim").read_text() == "precious"


def forge_files(root, files):
    """A dataset of one sample whose record says that it gives back these files."""
    schema = Schema((Field("x", "array", "uint8", (), "points"),))
    sample = MadeSample("n", "all", {"x": np.zeros(16, np.uint8)})
    write_store(root, schema, [sample], files=files)
    return root


HOSTILE = [
    (StoredFile("../../evil", "kitti_bin", {"x": "points"}, 16), "outside the folder"),
    (StoredFile("/etc/evil", "kitti_bin", {"x": "points"}, 16), "outside the folder"),
    (StoredFile("a.bin", "kitti_bin", {"x": "points"}, 16), "cannot be made of its arrays"),
    (StoredFile("a.bin", "kitti_bin", {}, 16), "takes points"),
    (StoredFile("a.label", "semantickitti_label", {"x": "semantic"}, 16), "takes semantic, instance"),
    (StoredFile("a.xyz", "unheard_of", {"x": "points"}, 16), "'unheard_of', which this fastload does not know"),
]


@pytest.mark.parametrize(("file", "message"), HOSTILE)
def test_records_made_to_do_harm_are_refused(tmp_path, file, message):
    root = forge_files(tmp_path / "d", [file])
    with pytest.raises(fastload.DatasetError, match=message):
        fastload.unpack(root, tmp_path / "out")
    assert not [path for path in tmp_path.rglob("*") if path.name == "evil"]
    done = run_fastload("unpack", root, tmp_path / "out2")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    wrong_paths = "evil" in file.path
    assert fastload.verify(root).ok is not (wrong_paths or "takes" in message)


def test_a_folder_under_the_name_of_a_file_is_named_and_no_temporary_file_stays(packed, tmp_path):
    (tmp_path / "out/sequences/00/velodyne/000001.bin").mkdir(parents=True)
    with pytest.raises(OSError, match="000001") as caught:
        fastload.unpack(packed, tmp_path / "out", overwrite=True)
    assert caught.value.errno == errno.EISDIR
    assert not list((tmp_path / "out").rglob(".tmp-*"))


def test_damage_stops_it_by_name(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "d")
    shard = tmp_path / "d/shards/00000.lmdb"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = run_fastload("unpack", tmp_path / "d", tmp_path / "out")
    assert done.returncode == 1
    assert "shards/00000.lmdb" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("turn", [0, 1, 5, 17])
def test_a_failure_in_the_middle_says_what_stays_and_how_to_go_on(packed, scans, tmp_path, code, turn):
    out = tmp_path / "out"
    calls = itertools.count()
    real = fs._write_new

    def fail(*arguments):
        if next(calls) == turn:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "_write_new", fail)
        with pytest.raises((OSError, fastload.FastloadError)) as caught:
            fastload.unpack(packed, out)
    text = str(pickle.loads(pickle.dumps(caught.value)))
    what = f"what was written so far ({turn} file{'s' * (turn != 1)})"
    assert f"{what} stays in {out}: give overwrite=True (--overwrite)" in text
    assert os.strerror(code) in text or code == errno.EMFILE
    assert len([path for path in out.rglob("*") if path.is_file()]) == turn
    with pytest.raises(UsageError, match="--overwrite"):
        fastload.unpack(packed, out)
    fastload.unpack(packed, out, overwrite=True)
    assert tree_bytes(out) == tree_bytes(scans)


def test_damage_in_the_middle_keeps_its_error_and_says_what_stays(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "d")
    (tmp_path / "d/shards/00001.lmdb").unlink()
    with pytest.raises(CorruptError, match=r"00001\.lmdb: the shard is missing.*written so far .* stays in") as caught:
        fastload.unpack(tmp_path / "d", tmp_path / "out")
    assert caught.value.shard == "shards/00001.lmdb"
    done = run_fastload("unpack", tmp_path / "d", tmp_path / "other")
    assert (done.returncode, "stays in" in done.stderr) == (1, True)


def test_file_modes_follow_the_umask(packed, tmp_path):
    old = os.umask(0o027)
    try:
        fastload.unpack(packed, tmp_path / "out")
    finally:
        os.umask(old)
    file = next((tmp_path / "out").rglob("*.bin"))
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_was_stored_lossily_comes_back_only_on_request(packed, tmp_path):
    root = tmp_path / "dataset"
    shutil.copytree(packed, root)
    write_manifest(root, replace(read_manifest(root), lossy=("points: float32 made float16",)))

    with pytest.raises(UsageError, match=r"points: float32 made float16; .*lossy_ok=True \(--lossy-ok\)"):
        fastload.unpack(root, tmp_path / "library")
    refused = run_fastload("unpack", root, tmp_path / "refused")
    assert refused.returncode == 2
    assert "--lossy-ok" in refused.stderr
    assert not (tmp_path / "refused").exists()

    assert run_fastload("unpack", root, tmp_path / "given", "--lossy-ok").returncode == 0
    fastload.unpack(root, tmp_path / "library", lossy_ok=True)
    assert tree_bytes(tmp_path / "given") == tree_bytes(tmp_path / "library") != {}

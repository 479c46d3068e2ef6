"""What a source holds: nothing left out silently, and the same names under every locale."""

import errno
import functools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fastload
from fastload.errors import ResourceError, SourceError
from fastload.layouts.base import Note, SourceSample
from fastload.layouts.semantickitti import SCHEMA, SemanticKitti
from fastload.packing.plan import list_source, walk_files
from tests.support import REPO, run_fastload, run_python, skip_where_pathlib_keeps, tree_bytes, write_tree

IDENTITY = "Tr: 1 0 0 0 0 1 0 0 0 0 1 0\n"
LAYOUT = SemanticKitti()
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
REFUSED = (errno.EIO, errno.ESTALE, errno.EACCES)


@pytest.fixture
def source(tmp_path):
    root = write_tree(tmp_path / "source", {f"00/{i:06d}": 24 for i in range(3)})
    (root / "sequences/00/calib.txt").write_text(IDENTITY)
    return root


def listed(source):
    return list_source(source, LAYOUT, {}, source / "out")


class Refusing:
    """An `os` function that fails for one path, from its n-th call for it on."""

    def __init__(self, monkeypatch, function, place, code, first=1, last=10**9):
        self.real, self.place, self.code, self.turns = getattr(os, function), str(place), code, range(first, last + 1)
        self.calls = 0
        skip_where_pathlib_keeps(function)
        monkeypatch.setattr(os, function, self)

    def __call__(self, path=".", *arguments, **options):
        if os.fspath(path) == self.place:
            self.calls += 1
            if self.calls in self.turns:
                raise OSError(self.code, os.strerror(self.code), self.place)
        return self.real(path, *arguments, **options)


# --- folders that cannot be looked into


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize("turn", [1, 2])
def test_no_attachment_is_lost_to_a_folder_that_cannot_be_listed(source, tmp_path, monkeypatch, code, turn):
    Refusing(monkeypatch, "scandir", source / "sequences", code, turn, turn)
    with pytest.raises(SourceError, match=rf"^sequences: cannot be .*{os.strerror(code)}") as caught:
        fastload.pack(source, tmp_path / "out", layout=LAYOUT)
    assert [problem.kind for problem in caught.value.problems] == ["unreadable"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", EXHAUSTED)
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_limits_of_the_machine_stop_the_listing(source, monkeypatch, code, turn):
    Refusing(monkeypatch, "scandir", source / "sequences", code, turn, turn)
    with pytest.raises(ResourceError):
        listed(source)


@pytest.mark.parametrize("code", REFUSED)
def test_an_attachment_that_cannot_be_told_from_nothing_is_a_problem(source, monkeypatch, code):
    Refusing(monkeypatch, "lstat", source / "sequences/00/calib.txt", code)
    Refusing(monkeypatch, "stat", source / "sequences/00/calib.txt", code)
    (problem,) = listed(source).problems
    assert problem.path == "sequences/00/calib.txt"
    assert os.strerror(code) in problem.found


@pytest.mark.parametrize("file", ["calib.txt", "poses.txt", "times.txt"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "broken link", "link to a folder"])
def test_what_is_no_file_under_the_name_of_an_attachment_is_one_problem(source, file, kind):
    place = source / "sequences/00" / file
    place.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("nowhere" if kind == "broken link" else "velodyne")
    (problem,) = listed(source).problems
    assert (problem.path, problem.kind) == (f"sequences/00/{file}", "unreadable")


def test_a_folder_under_the_name_of_a_scan_is_a_problem(source):
    (source / "sequences/00/velodyne/000009.bin").mkdir()
    (source / "sequences/00/labels/000001.label").unlink()
    (source / "sequences/00/labels/000001.label").mkdir()
    write_tree(source, {"08/000000": 24})
    os.mkfifo(source / "sequences/08/velodyne/000001.bin")
    found = {problem.path: problem.found for problem in listed(source).problems if problem.found != ""}
    for path in ("00/velodyne/000009.bin", "00/labels/000001.label", "08/velodyne/000001.bin"):
        assert found[f"sequences/{path}"] == "not a regular file"


class Raising:
    """A layout of another package whose generators meet an error of the system."""

    name, schema = "raising", SCHEMA

    def __init__(self, error, where):
        self.error, self.where = error, where

    def detect(self, root):
        return True

    def samples(self, root, **options):
        yield Note(None, "a note before")
        yield SourceSample("one", "train", {"time": np.array(1.0)})
        if self.where == "samples":
            raise self.error

    def attachments(self, root):
        if self.where == "attachments":
            raise self.error
        yield from ()


@pytest.mark.parametrize("where", ["samples", "attachments"])
@pytest.mark.parametrize("filename", ["sequences/07", b"sequences/07", None, "/elsewhere", 7])
def test_an_error_in_any_layout_becomes_a_problem_that_names_the_path(source, where, filename):
    if filename in ("sequences/07", b"sequences/07"):
        filename = os.path.join(os.fsencode(source) if isinstance(filename, bytes) else source, filename)
    listing = list_source(source, Raising(OSError(errno.EIO, "broken", filename), where), {}, source / "out")
    (problem,) = listing.problems
    expected = {None: str(source), 7: str(source), "/elsewhere": "/elsewhere"}.get(filename, "sequences/07")
    assert (problem.path, problem.found, problem.kind) == (expected, "cannot be looked into (broken)", "unreadable")
    assert (len(listing.samples), listing.notes) == (1, ("a note before",))
    with pytest.raises(ResourceError):
        list_source(source, Raising(OSError(errno.EMFILE, "full", filename), where), {}, source / "out")


def test_a_folder_that_cannot_be_listed_is_told_with_what_is_lost(source, monkeypatch):
    for name in ("extra/deep", "sequences/00/voxels"):
        (source / name).mkdir(parents=True)
        (source / name / "file").touch()
    Refusing(monkeypatch, "scandir", source / "extra", errno.EACCES)
    Refusing(monkeypatch, "scandir", source / "sequences/00/voxels", errno.EIO)
    listing = listed(source)
    assert listing.problems == ()
    assert "extra: cannot be listed (Permission denied): its files are not packed" in listing.notes
    assert (
        f"sequences/00/voxels: cannot be listed ({os.strerror(errno.EIO)}): its files are not packed" in listing.notes
    )
    assert not any("deep" in name or "voxels" in name for name in listing.ignored)


def test_a_folder_whose_files_are_packed_is_not_said_to_be_lost(source, monkeypatch):
    Refusing(monkeypatch, "scandir", source / "sequences/00/velodyne", errno.EIO, first=2)
    listing = listed(source)
    assert (len(listing.samples), listing.problems) == (3, ())
    (note,) = [note for note in listing.notes if "cannot be listed" in note]
    assert note.startswith("sequences/00/velodyne: cannot be listed")
    assert "not packed" not in note


def test_a_folder_that_is_a_problem_already_is_not_told_twice(source, monkeypatch):
    Refusing(monkeypatch, "scandir", source / "sequences/00/velodyne", errno.EACCES)
    listing = listed(source)
    assert [problem.path for problem in listing.problems] == ["sequences/00/velodyne"]
    assert not any("cannot be listed" in note for note in listing.notes)


@pytest.mark.parametrize("function", ["scandir", "stat"])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_folder_that_vanishes_meanwhile_ends_nothing(source, monkeypatch, function, code):
    (source / "extra").mkdir()
    (source / "extra/file").touch()
    (source / "other").touch()
    Refusing(monkeypatch, function, source / "extra", code)
    refused = []
    assert "other" in set(walk_files(source, source / "out", refused.append))
    assert [error.errno for error in refused] == [code]
    assert any("extra: cannot be listed" in note for note in listed(source).notes) == (code != errno.ENOENT)


# --- the same, with the kernel saying it


@functools.cache
def can_trace():
    if shutil.which("strace") is None:
        return False
    probe = ["strace", "-f", "-o", "/dev/null", "-e", "inject=openat:error=EIO:when=9999", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def pack_injected(path, fault, source, out, *options):
    if not can_trace():
        pytest.skip("strace is missing, or may not trace here")
    call = fault.split(":")[0]
    trace = ["strace", "-f", "-o", "/dev/null", "-P", str(path), "-e", f"trace={call}", "-e", f"inject={fault}"]
    command = [*trace, sys.executable, "-m", "fastload", "pack", "semantickitti", str(source), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPO)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("code", ["EIO", "ESTALE", "EACCES", "EMFILE", "ENFILE", "ENOMEM"])
def test_a_listing_that_the_kernel_refuses_stops_the_pack(source, tmp_path, code, turn):
    done = pack_injected(source / "sequences", f"openat:error={code}:when={turn}", source, tmp_path / "out")
    assert done.returncode == 1
    assert "sequences: cannot be" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["velodyne/000001.bin", "labels/000001.label", "calib.txt"])
@pytest.mark.parametrize("code", ["EMFILE", "ENOMEM"])
def test_a_read_that_meets_a_limit_is_no_bad_sample(source, tmp_path, file, code):
    place = source / "sequences/00" / file
    done = pack_injected(place, f"openat:error={code}", source, tmp_path / "out", "--skip-bad")
    assert done.returncode == 1
    assert f"sequences/00/{file}: cannot be" in done.stderr
    assert "too many open files" in done.stderr or "out of memory" in done.stderr
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_folder_that_breaks_off_while_it_is_listed_is_named(source, tmp_path):
    done = pack_injected(source / "sequences/00/velodyne", "getdents64:error=EIO", source, tmp_path / "out")
    assert done.returncode == 1
    assert "sequences/00/velodyne: cannot be read: Input/output error" in done.stderr


def test_a_folder_that_the_kernel_keeps_closed_is_told(source, tmp_path):
    (source / "extra").mkdir()
    (source / "extra/file").touch()
    done = pack_injected(source / "extra", "openat:error=EACCES", source, tmp_path / "out")
    assert done.returncode == 0
    assert "note: extra: cannot be listed (Permission denied): its files are not packed" in done.stderr


# --- pipes


@pytest.mark.parametrize("file", ["calib.txt", "poses.txt", "times.txt", "velodyne/000001.bin", "labels/000001.label"])
def test_a_pipe_in_the_source_stops_the_pack_at_once(source, tmp_path, file):
    place = source / "sequences/00" / file
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    done = run_fastload("pack", source, tmp_path / "out", timeout=60)
    assert done.returncode == 1
    assert f"sequences/00/{file}" in done.stderr
    assert "not a regular file" in done.stderr


# --- names


NAMES = """
import json, sys
from pathlib import Path
from fastload.layouts.semantickitti import SCHEMA, SemanticKitti
from fastload.packing.plan import list_source
from fastload.packing.source import load
source = Path(sys.argv[1])
listing = list_source(source, SemanticKitti(), {"splits": sys.argv[2]}, source / "out")
files = [file.path for sample in listing.samples for file in load(source, SCHEMA, sample).files]
names = [sample.sample.name for sample in listing.samples]
attachments = [item.name for item in listing.attachments]
print(json.dumps([sys.getfilesystemencoding(), names, files, attachments, [str(p) for p in listing.problems]]))
"""


@pytest.fixture(scope="module")
def latin(tmp_path_factory):
    """The environment of a process in a locale of ISO-8859-1."""
    if shutil.which("localedef") is None:
        pytest.skip("localedef is missing: no other locale can be made")
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("localedef has no definitions to make a locale of")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONUTF8", "LANG"))}
    return {**clean, "LOCPATH": str(folder), "LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}


@pytest.fixture
def accented(tmp_path):
    """Names beyond ASCII, one of them no UTF-8, in scans, sequences and splits."""
    root = write_tree(tmp_path / "source", {"nächte/000000": 24, "nächte/straße": 24, "日/000000": 24})
    for name in (b"caf\xe9", "zoë".encode()):
        for folder, suffix in ((b"velodyne", b".bin"), (b"labels", b".label")):
            place = os.path.join(os.fsencode(root), b"sequences", "nächte".encode(), folder)
            shutil.copy(os.path.join(place, b"000000" + suffix), os.path.join(place, name + suffix))
    (root / "sequences/nächte/calib.txt").write_text(IDENTITY)
    splits = tmp_path / "splits.yaml"
    splits.write_text("prüfung: [nächte]\ntrain: [日]\n", encoding="utf-8")
    return root, splits


def test_names_are_the_same_under_every_locale(accented, latin):
    source, splits = accented
    unicode = {**os.environ, "LC_ALL": "C.UTF-8"}
    found = {}
    for encoding, env in (("utf-8", unicode), ("iso8859-1", latin)):
        done = run_python(NAMES, source, splits, env=env)
        assert done.returncode == 0, done.stderr
        used, *found[encoding] = json.loads(done.stdout)
        assert used.replace("iso-8859-1", "iso8859-1") == encoding
    assert found["utf-8"] == found["iso8859-1"]
    names, files, attachments, problems = found["utf-8"]
    assert problems == []
    assert names == [f"sequences/nächte/velodyne/{stem}" for stem in ("000000", "caf\udce9", "straße", "zoë")] + [
        "sequences/日/velodyne/000000"
    ]
    assert len(files) == 10
    assert f"{names[2]}.bin" in files
    assert attachments == ["sequences/nächte/calib.txt"]


def test_packs_are_the_same_under_every_locale(accented, latin, tmp_path):
    source, splits = accented
    packs = []
    for number, env in enumerate(({**os.environ, "LC_ALL": "C.UTF-8"}, latin)):
        done = run_fastload("pack", source, tmp_path / f"out{number}", "--splits", splits, "--quiet", env=env)
        assert done.returncode == 0, done.stderr
        packs.append(tree_bytes(tmp_path / f"out{number}"))
    assert packs[0] == packs[1]

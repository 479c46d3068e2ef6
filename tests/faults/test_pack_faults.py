"""Packing under fault: a kill, a full disk, few descriptors, little address space. Never half a dataset."""

import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fastload
from fastload.errors import DatasetNotFoundError
from tests.support import REPO, run_fastload, run_python, tree_bytes, write_tree


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("faults"), {f"00/{i:06d}": 30_000 for i in range(40)})


@pytest.fixture(scope="module")
def clean(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("clean") / "d"
    fastload.pack(source, out, shard_size="3MB")
    return tree_bytes(out)


def start(source, out):
    command = [sys.executable, "-m", "fastload", "pack", str(source), str(out), "--shard-size", "3MB", "--quiet"]
    return subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_killed_at_any_time_it_is_whole_or_not_there_and_a_second_run_finishes(source, clean, tmp_path):
    rng = random.Random(1)
    killed = 0
    for turn in range(15):
        out = tmp_path / f"d{turn}"
        process = start(source, out)
        until = time.monotonic() + 20
        while not (out / "shards").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if (out / "dataset.json").exists():
            assert fastload.verify(out).ok
        else:
            with pytest.raises(DatasetNotFoundError):
                len(fastload.PackedDataset(out))
            fastload.pack(source, out, shard_size="3MB")
        assert tree_bytes(out) == clean, f"seed 1, turn {turn}"
    assert killed >= 5


@contextmanager
def small_disk(folder, size):
    """A tmpfs of so many bytes."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


BLIND = """
import sys
from fastload.cli.main import main
from fastload.packing import output
output.check_space = lambda out, needed_bytes: None  # as where others fill the disk meanwhile
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.root
@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("size", ["1m", "5m", "22m", "23400k"])
def test_a_full_disk_is_a_clear_error_and_a_second_run_finishes(source, clean, tmp_path, size, blind):
    with small_disk(tmp_path / "disk", size) as disk:
        arguments = ("pack", source, disk / "d", "--shard-size", "3MB")
        done = run_python(BLIND, *arguments) if blind else run_fastload(*arguments)
        assert done.returncode == 1, (done.returncode, done.stderr)
        assert "no space" in done.stderr
        assert str(disk) in done.stderr
        assert "free on its disk" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (disk / "d/dataset.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert run_fastload("pack", source, disk / "d", "--shard-size", "3MB").returncode == 0
        assert tree_bytes(disk / "d") == clean


@pytest.mark.parametrize("call", ["fsync", "write", "rename", "openat"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.slow
def test_a_call_that_fails_names_the_file_and_publishes_nothing(tmp_path, call, error):
    """Every such call on a file of the dataset in turn, by the file module's functions."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 500 for i in range(4)})
    turn = 0
    while True:
        out = tmp_path / f"d{turn}"
        done = run_python(FAILING, call, error, turn, "pack", source, out, "--shard-size", "20kB", "--quiet")
        if done.returncode == 0:
            break
        assert done.returncode == 1, (turn, done.stderr)
        assert str(out) in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(out.glob("shards/.tmp-*"))
        if not (out / "dataset.json").exists():  # the last call syncs the folder after the rename
            assert run_fastload("pack", source, out, "--shard-size", "20kB", "--quiet").returncode == 0
        assert fastload.verify(out).ok
        turn += 1
    assert turn >= 5


@contextmanager
def nth_call_fails(owner, name, turn, code):
    """The call number `turn` of a function, and no other, is answered with this error. Gives the calls."""
    calls = []
    real = getattr(owner, name)

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == turn + 1:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield calls


CALLS = [(os, "fsync"), (Path, "replace"), (os, "link"), (os, "pread"), (os, "preadv"), (os, "open")]


@pytest.mark.parametrize(("owner", "name"), CALLS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_no_call_that_fails_leaves_half_a_shard_behind(tmp_path, owner, name, code):
    """Neither packing nor repairing: what is half written only takes space, on a disk that may be full."""
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 200 for i in range(4)})
    fastload.pack(source, tmp_path / "sound", shard_size=8_000)
    sound = tree_bytes(tmp_path / "sound")
    pages = bytearray(sound["shards/00000.lmdb"])
    pages[4096] ^= 8  # a meta page: the records can be read, the pages are to be rebuilt

    def damaged(root):
        shutil.copytree(tmp_path / "sound", root)
        (root / "shards/00000.lmdb").write_bytes(pages)

    def repair(root):
        damaged(root)
        return fastload.repair(root)

    for work in (lambda root: fastload.pack(source, root, shard_size=8_000), repair):
        for turn in itertools.count():
            root = tmp_path / "d"
            shutil.rmtree(root, ignore_errors=True)
            with nth_call_fails(owner, name, turn, code) as calls, suppress(OSError, fastload.FastloadError):
                work(root)
            assert not list(root.glob("shards/.tmp-*")), (turn, calls[-1:])
            if len(calls) <= turn:
                assert tree_bytes(root).items() >= sound.items()
                break


FAILING = """
import errno, os, pathlib, sys
call, error, turn = sys.argv[1], getattr(errno, sys.argv[2]), int(sys.argv[3])
import fastload.packing.run
from fastload.cli.main import main
left = [turn]
def failing(real):
    def wrapped(*arguments, **options):
        if left[0] == 0:
            left[0] = -1
            raise OSError(error, os.strerror(error))
        left[0] -= 1
        return real(*arguments, **options)
    return wrapped
if call == "fsync":
    os.fsync = failing(os.fsync)
elif call == "rename":
    pathlib.Path.replace = failing(pathlib.Path.replace)
elif call == "openat":
    real_open, failing_open = os.open, failing(os.open)
    os.open = lambda path, flags, *mode: (failing_open if flags & os.O_CREAT else real_open)(path, flags, *mode)
else:
    real_fdopen = os.fdopen
    class File:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *ignored): self.file.close()
        def write(self, data): return failing(self.file.write)(data)
    os.fdopen = lambda *arguments: File(real_fdopen(*arguments))
sys.exit(main(sys.argv[4:]))
"""


def test_a_file_size_limit_is_a_clear_error(source, tmp_path):
    code = """
import resource, signal, sys
from fastload.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
sys.exit(main(sys.argv[1:]))
"""
    done = run_python(code, "pack", source, tmp_path / "d", "--shard-size", "3MB")
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "00000.lmdb" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d/dataset.json").exists()


LIMITED = """
import resource, sys
from fastload.cli.main import main
which, value = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(which, (value, value))
code = main(sys.argv[3:5] + [sys.argv[5], "--shard-size", "3MB", "--quiet"])
code = code or main(["verify", sys.argv[5], "--quiet"])
sys.exit(code)
"""


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_NOFILE", 16), ("RLIMIT_AS", 3 << 30)])
def test_few_descriptors_and_little_address_space_are_enough(source, clean, tmp_path, limit, value):
    done = run_python(LIMITED, limit, value, "pack", source, tmp_path / "d")
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert tree_bytes(tmp_path / "d") == clean


@pytest.mark.root
@pytest.mark.parametrize("what", ["scan", "folder", "output"])
def test_what_may_not_be_read_or_written_is_named(tmp_path, what):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    base = tmp_path / "open"
    source = write_tree(base / "source", {"00/000000": 10, "08/000000": 10})
    os.chmod(base, 0o777)
    for parent in base.parents:
        if parent == parent.parent or parent.stat().st_mode & 0o055 == 0o055:
            continue
        os.chmod(parent, 0o755)
    target = {"scan": source / "sequences/00/velodyne/000000.bin", "folder": source / "sequences/08/velodyne",
              "output": base}[what]  # fmt: skip
    os.chmod(target, 0o400 if what == "scan" else 0o500 if what == "folder" else 0o555)
    if what == "folder":
        os.chmod(target, 0o000)
    code = """
import os, sys
import fastload.layouts.registry, fastload.packing.run
from fastload.cli.main import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""
    done = run_python(code, "pack", "semantickitti", source, base / "d")
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "ermission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert {"scan": "000000.bin", "folder": "sequences/08", "output": "open"}[what] in done.stderr

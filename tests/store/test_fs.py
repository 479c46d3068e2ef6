"""The file module: whole files or none, and a full disk is an error that says so."""

import errno
import os
from pathlib import Path

import pytest

from fastload.errors import ResourceError
from fastload.store import fs


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "x"
    fs.write_atomic(path, [b"old"])

    def broken():
        yield b"new"
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError):
        fs.write_atomic(path, broken())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_synced_before_and_after_it_is_renamed(tmp_path, monkeypatch):
    calls = []
    real = os.fsync

    def fsync(fd):
        calls.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    fs.write_atomic(tmp_path / "x", [b"data"])
    assert [Path(call).name for call in calls] == [".tmp-x", tmp_path.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_path_and_free_space(tmp_path, code):
    def full():
        yield b""
        raise OSError(code, os.strerror(code))

    with pytest.raises(ResourceError, match=r"x: no space to write it \(.*free on its disk") as caught:
        fs.write_atomic(tmp_path / "x", full())
    assert os.strerror(code) in str(caught.value)


def test_folders_that_cannot_be_synced_are_tolerated(tmp_path, monkeypatch):
    def fsync(fd):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    fs.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(OSError, match="I/O error"):
        fs.sync_folder(tmp_path)

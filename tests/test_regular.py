"""Files that are opened by name: whole, or refused at once."""

import os
import socket

import pytest

from fastload.regular import open_regular, read_regular


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 999)
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path) == read_regular(str(tmp_path / "link")) == path.read_bytes()
    with open_regular(path) as file:
        assert file.read(3) == b"\x00\x01\x02"


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "thing"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(os.path.relpath(path))
    with pytest.raises(OSError) as caught:
        read_regular(path)
    assert caught.value.filename == str(path)
    assert caught.value.strerror


def test_what_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")

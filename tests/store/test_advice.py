"""What errors advise: the command that they name does what they say."""

import os
import re
import shlex
import shutil

import pytest

import fastload
from fastload.cli.main import main
from fastload.errors import CorruptError, DatasetError
from fastload.store.attachments import read_attachments
from fastload.store.files import BLOCK_BYTES, CheckedFile, describe_blocks
from fastload.store.reader import open_store


@pytest.fixture
def dataset(packed, tmp_path):
    """A dataset whose folder needs quotes in a shell."""
    shutil.copytree(packed, tmp_path / "my data's" / "d")
    return tmp_path / "my data's" / "d"


def use(root):
    """Use all of a dataset: samples, names, attachments."""
    loaded = fastload.PackedDataset(root)
    list(loaded), list(loaded.names), list(loaded.counts), list(read_attachments(open_store(root)))


def advised(text):
    """The words of the command that a message names."""
    found = re.search(r"with: (fastload repair .+?)(?: \(fastload verify|$)", text)
    assert found, text
    return shlex.split(found[1])


def missing(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 8
    path.write_bytes(data)


def flipped(path):
    flip(path, path.stat().st_size // 2)


def pages_flipped(path):
    """A meta page is damaged, no record."""
    flip(path, 4096 + 16)


def a_folder(path):
    path.unlink()
    path.mkdir()


SIDE_FILES = ("dataset.json", "index.npy", "names.bin", "names.npy")
DAMAGES = [*((file, how) for file in SIDE_FILES for how in (missing, cut, flipped, a_folder)),
           *(("shards/00000.lmdb", how) for how in (missing, cut, flipped, a_folder, pages_flipped))]  # fmt: skip


@pytest.mark.parametrize("by", ["reading", "verify"])
@pytest.mark.parametrize(("file", "how"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_the_command_that_an_error_names_mends_what_it_says(dataset, file, how, by):
    how(dataset / file)
    if by == "reading":
        for path in (dataset / "shards").iterdir() if how is pages_flipped else ():
            if path.name != "00000.lmdb":  # only attachments are found by pages: damage those of their shard too
                pages_flipped(path)
        with pytest.raises(DatasetError) as caught:
            use(dataset)
        text = str(caught.value)
    else:
        text = str(fastload.verify(dataset).problems[0])
        if (file, how) == ("shards/00000.lmdb", flipped):  # of one sample: short, as there may be thousands
            assert text.endswith("leave the sample out with fastload repair --drop-damaged")
            text = f"with: fastload repair {shlex.quote(str(dataset))} --drop-damaged"
    words = advised(text)
    assert words[:3] == ["fastload", "repair", str(dataset)]
    assert main(words[1:]) == 0
    use(dataset)  # also while the error still holds on to what was read before
    assert fastload.verify(dataset).ok
    assert (len(fastload.PackedDataset(dataset)) < 6) == ("--drop-damaged" in words)


def test_a_mended_file_is_read_anew_and_verified_anew(tmp_path):
    """Blocks of the old file that were verified say nothing of the new one."""
    size = 3 * BLOCK_BYTES + 100
    data = os.urandom(size)
    path = tmp_path / "names.bin"
    path.write_bytes(data)
    file = CheckedFile(tmp_path, describe_blocks(tmp_path, "names.bin"))
    flip(path, 2 * BLOCK_BYTES)
    assert file.read(10, 5) == data[5:15]
    with pytest.raises(CorruptError, match="2,097,152 on"):
        file.read(1, size - BLOCK_BYTES)
    other = bytearray(data)
    other[5] ^= 1  # the new one has the damaged block whole, and one damaged that was verified in the old
    (tmp_path / "new").write_bytes(other)
    (tmp_path / "new").replace(path)
    assert file.read(1, size - BLOCK_BYTES) == data[-BLOCK_BYTES : 1 - BLOCK_BYTES]
    with pytest.raises(CorruptError, match="bytes 0 on"):
        file.read(10, 5)
    (tmp_path / "new").write_bytes(data)
    (tmp_path / "new").replace(path)
    assert file.read(size, 0) == data

"""The manifest: every kind of wrong one is a clear error."""

import json

import pytest

from fastload.errors import CorruptError, DatasetNotFoundError, VersionError
from fastload.schema import Field, Schema
from fastload.store.manifest import read_manifest, write_manifest
from tests.support import write_store

SCHEMA = Schema((Field("x", "array", "int64"),))


@pytest.fixture
def root(tmp_path):
    write_store(tmp_path / "d", SCHEMA, [])
    return tmp_path / "d"


def change(root, **values):
    path = root / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_it_comes_back(root):
    manifest = read_manifest(root)
    before = (root / "dataset.json").read_bytes()
    write_manifest(root, manifest)
    assert (root / "dataset.json").read_bytes() == before
    assert read_manifest(root) == manifest
    assert read_manifest(root).fingerprint == manifest.fingerprint


def test_one_from_the_future_is_refused_by_version(root):
    change(root, format_version=2, something="new")
    with pytest.raises(VersionError, match="format version 2; this fastload reads version 1; install a newer"):
        read_manifest(root)


NO_MANIFESTS = ["", "{", "[]", "null", '"x"', "{}", '{"format": "other", "format_version": 1}',
                '{"format": "fastload", "format_version": "1"}', "\x00\x01", "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_what_is_no_manifest_is_named(root, text):
    (root / "dataset.json").write_text(text)
    with pytest.raises(CorruptError, match=r"dataset\.json"):
        read_manifest(root)


def test_any_flipped_byte_is_noticed(root):
    path = root / "dataset.json"
    data = path.read_bytes()
    right = read_manifest(root)
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :])
        try:
            found = read_manifest(root)
        except (CorruptError, VersionError):
            continue
        assert found == right  # white space between values


def test_a_shard_outside_the_folder_is_refused(root):
    manifest = read_manifest(root)
    for file in ("../other/00000.lmdb", "/etc/passwd", "shards/../../x", "shards/.x"):
        entry = {"file": file, "bytes": 1, "xxh3_128": "", "first": 0, "samples": 0, "attachments": 0}
        values = {**manifest.to_json(), "shards": [entry]}
        from fastload.store.manifest import _checksum

        (root / "dataset.json").write_text(json.dumps({**values, "checksum": _checksum(values)}))
        with pytest.raises(CorruptError, match="outside"):
            read_manifest(root)


def test_missing_ones_say_what_is_there(tmp_path, root):
    (root / "dataset.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="unfinished pack"):
        read_manifest(root)
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        read_manifest(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="not a packed dataset"):
        read_manifest(tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="not a folder"):
        read_manifest(tmp_path / "file")

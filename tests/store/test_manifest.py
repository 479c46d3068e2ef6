"""The manifest: every kind of wrong one is a clear error."""

import json
import os
import re

import numpy as np
import pytest

import fastload
from fastload.errors import CorruptError, DatasetNotFoundError, VersionError
from fastload.schema import Field, Schema
from fastload.store.manifest import _checksum, read_manifest, write_manifest
from tests.support import MadeSample, write_store

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
    for version in (2, 3, 2**70):
        forge(root, {**read_manifest_values(root), "format_version": version, "something": "new"})
        with pytest.raises(VersionError, match=f"format version {version}; this fastload reads version 1; install a"):
            read_manifest(root)
        with pytest.raises(VersionError):
            fastload.verify(root)


def test_a_version_that_the_checksum_does_not_vouch_for_is_damage(root):
    """A flipped bit can make a 2 of the 1: nobody needs a newer fastload for that."""
    for version in (2, 3, 0, -1):
        change(root, format_version=version)
        with pytest.raises(CorruptError, match=r"dataset\.json"):
            read_manifest(root)
        assert [problem.kind for problem in fastload.verify(root).problems] == ["manifest"]


@pytest.mark.parametrize("version", [0, -1, 1.0, 2.5, True, None, "2", [2], {}])
def test_what_is_no_version_is_damage_also_with_a_right_checksum(root, version):
    forge(root, {**read_manifest_values(root), "format_version": version})
    with pytest.raises(CorruptError, match=r"'format_version'.*expected"):
        read_manifest(root)


def read_manifest_values(root):
    """What lies in the file, without its checksum."""
    values = json.loads((root / "dataset.json").read_text())
    del values["checksum"]
    return values


NO_MANIFESTS = ["", "{", "[]", "null", '"x"', "{}", '{"format": "other", "format_version": 1}',
                '{"format": "fastload", "format_version": "1"}', "\x00\x01", "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_what_is_no_manifest_is_named(root, text):
    (root / "dataset.json").write_text(text)
    with pytest.raises(CorruptError, match=r"dataset\.json") as caught:
        read_manifest(root)
    assert_plain(str(caught.value))
    assert f"fastload repair {root}" in str(caught.value)


def assert_plain(text):
    """No word of Python's own in a message, and no line of its internals."""
    jargon = r"\w+Error\b|NoneType|__\w+__|\bdict\b|\bint\(|keyword argument|subscriptable|unpack|set_int_max"
    assert not re.search(jargon, text), text


def test_any_flipped_byte_is_noticed(root):
    path = root / "dataset.json"
    data = path.read_bytes()
    right = read_manifest(root)
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :])
        try:
            found = read_manifest(root)
        except CorruptError:
            continue
        assert found == right  # white space between values


def forge(root, values):
    """A manifest made to do harm: its checksum is right, and its spelling."""
    text = json.dumps({**values, "checksum": _checksum(values)}, indent=1)
    (root / "dataset.json").write_text(text + "\n")


@pytest.fixture
def full(tmp_path):
    samples = [MadeSample(f"{i}", split, {"x": np.array(i)}) for i, split in enumerate("aabb")]
    write_store(tmp_path / "full", SCHEMA, samples, per_shard=2)
    return tmp_path / "full"


def test_a_shard_outside_the_folder_is_refused(full):
    values = read_manifest(full).to_json()
    for file in ("../other/00000.lmdb", "/etc/passwd", "shards/../../x", "shards/.x", "shards/1.lmdb", "/dev/zero"):
        values["shards"][0]["file"] = file
        forge(full, values)
        with pytest.raises(CorruptError, match="outside"):
            read_manifest(full)


ODD = (None, True, -1, 2**31, 2**63, 2**70, 1.5, "x", "", [], {}, [1], [[0, 1]], {"a": 1}, {"a": [[0, 9]]}, "/dev/zero")


def places_in(values, path=()):
    """Paths to everything inside nested dicts and lists."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def test_no_forged_manifest_makes_anything_but_a_clear_error(full):
    """Each value in turn becomes each odd one; whatever is accepted is a manifest that opens, reads and verifies."""
    right = json.dumps(read_manifest(full).to_json())
    paths = [path for path in places_in(json.loads(right)) if path[0] not in ("format", "format_version")]
    accepted = 0
    for path in paths:
        for odd in ODD:
            values = json.loads(right)
            inner = values
            for key in path[:-1]:
                inner = inner[key]
            if inner[path[-1]] == odd:
                continue
            inner[path[-1]] = odd
            forge(full, values)
            try:
                read_manifest(full)
            except CorruptError as error:
                assert_plain(str(error))
                continue
            accepted += 1
            report = fastload.verify(full)
            assert isinstance(report.ok, bool)
            fastload.info(full).to_json()
            try:
                assert len(list(fastload.PackedDataset(full))) == 4
            except fastload.FastloadError:
                continue
    assert accepted < 200


def test_what_a_manifest_lacks_is_named(full):
    """Each key in turn, wherever it lies."""
    right = json.dumps(read_manifest(full).to_json())
    for *path, key in places_in(json.loads(right)):
        values = json.loads(right)
        inner = values
        for step in path:
            inner = inner[step]
        if not isinstance(inner, dict) or path[:1] in (["present"], ["splits"]):
            continue
        del inner[key]
        forge(full, values)
        with pytest.raises(CorruptError, match=f"has no '{key}'"):
            read_manifest(full)


def test_options_nested_without_end_are_refused(full):
    text = (full / "dataset.json").read_text()
    for depth in (500, 980, 3000, 100_000):
        nested = text.replace('"options": {}', '"options": ' + '{"a":' * depth + "1" + "}" * depth)
        assert nested != text
        (full / "dataset.json").write_text(nested)
        with pytest.raises(CorruptError, match=r"dataset\.json"):
            read_manifest(full)


def test_a_shape_larger_than_any_sample_is_refused(full):
    values = read_manifest(full).to_json()
    for shape in ([2**70], [2**63, 0], [2**20, 2**20], [-1], [True], [1.0], ["1"], [[1]]):
        values["schema"][0]["shape"] = shape
        forge(full, values)
        with pytest.raises(CorruptError, match="shape"):
            read_manifest(full)


def test_a_manifest_that_was_formatted_anew_is_read_and_named_by_verify(full):
    path = full / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert len(fastload.PackedDataset(full)) == 4
    (problem,) = fastload.verify(full).problems
    assert (problem.shard, problem.kind) == ("dataset.json", "manifest")
    assert "fastload repair" in problem.fix
    assert fastload.repair(full).ok
    assert fastload.verify(full).ok


@pytest.mark.parametrize("key", ["points", "source_bytes"])
def test_wrong_sums_are_found_by_verify(full, key):
    values = read_manifest(full).to_json()
    values[key] += 1
    forge(full, values)
    assert [problem.kind for problem in fastload.verify(full).problems] == ["manifest"]


def test_splits_that_are_not_those_of_the_records_are_found_by_verify(full):
    values = read_manifest(full).to_json()
    values["splits"] = {"a": [[0, 3]], "b": [[3, 4]]}
    forge(full, values)
    assert [problem.index for problem in fastload.verify(full).problems] == [2]


@pytest.mark.parametrize("file", ["dataset.json", "index.npy", "names.bin", "names.npy", "shards/00000.lmdb"])
def test_a_fifo_is_not_waited_for(full, file):
    (full / file).unlink()
    os.mkfifo(full / file)
    assert not fastload.verify(full).ok
    with pytest.raises(CorruptError, match="not a regular file"):
        fastload.PackedDataset(full)[0]


def test_missing_ones_say_what_is_there(tmp_path, root):
    (root / "dataset.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="an incomplete copy of a dataset"):
        read_manifest(root)
    (root / ".tmp-dataset.json").touch()
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

"""Index rows: whatever a record says of itself becomes a row that numpy takes, or a named damage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastload
from fastload.schema import Field, Schema
from fastload.store import pages
from fastload.store.index import make_row, row_dtype
from fastload.store.record import DamageError, Header, Prefix, StoredField, encode_record
from fastload.store.shard import ShardWriter
from tests.support import MadeSample, write_store

SCHEMA = Schema((Field("points", "array", "float32", (0,), "points"), Field("image", "image"), Field("note", "json")))
NUMBERS = st.one_of(st.integers(-2, 2**70), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**64, 2**64 - 1]))
ODD = st.one_of(NUMBERS, st.none(), st.booleans(), st.floats(), st.text(), st.binary(), st.lists(st.integers()))


@given(NUMBERS.filter(lambda n: n >= 0), st.dictionaries(st.sampled_from(["height", "width", "depth"]), ODD))
@settings(max_examples=300, deadline=None)
def test_a_row_fits_its_columns_or_is_a_damage(count, meta):
    points = StoredField("points", "float32", (count, 0), 0, 0, None, 1)
    image = StoredField("image", "uint8", (4,), 0, 4, None, 1, meta)
    header = Header("n", "all", (points, image))
    sizes = [count, *(value for key, value in meta.items() if key != "depth")]
    fits = all(type(size) is int and 0 <= size < 2**32 for size in sizes)
    try:
        row = make_row(SCHEMA, 3, 2**40, Prefix(0, 48, 2**32 - 1, 2**64 - 1), header)
    except DamageError as error:
        assert not fits
        assert error.field in ("points", "image")  # noqa: PT017 - either is right
        assert len(str(error)) < 200  # noqa: PT017
        return
    assert fits
    rows = np.array([row], row_dtype(SCHEMA))
    assert rows["rows_points"][0] == count
    assert rows["height_image"][0] == meta.get("height", 0)


@pytest.fixture
def images(tmp_path):
    data = np.arange(40, dtype=np.uint8)
    schema = Schema((Field("image", "image"),))
    write_store(tmp_path / "d", schema, [MadeSample(f"{i}", "all", {"image": data}) for i in range(3)])
    return tmp_path / "d"


@pytest.mark.parametrize("height", [2**32, 2**64 - 1, -1, 1.5, "x", None])
@pytest.mark.parametrize("files", [(), ("dataset.json", "index.npy", "names.bin", "names.npy")])
def test_a_record_with_a_number_that_no_index_holds_is_named_by_verify_and_repair(images, height, files):
    """A record made to do harm: its checksums are right."""
    arrays = {"image": np.arange(40, dtype=np.uint8)}
    meta = {"image": {"height": height}}
    rewrite_record(images / "shards/00000.lmdb", 1, "1", arrays, split="all", field_meta=meta)
    assert any(p.index == 1 and "height" in p.found for p in fastload.verify(images).problems)
    for file in files:
        (images / file).unlink()
    report = fastload.repair(images)
    assert {problem.index for problem in report.problems} == {1}
    assert fastload.repair(images, drop_damaged=True).ok
    assert list(fastload.PackedDataset(images).names) == ["0", "2"]
    assert fastload.verify(images).ok


def rewrite_record(path, number, name, arrays, **options):
    """Write a shard anew with another record under one of its keys."""
    with path.open("rb") as file:
        records = {int.from_bytes(entry.key, "big"): pread(file, entry) for entry in pages.walk(file.fileno())}
        map_size = pages.read_map_size(file.fileno())
    records[number] = encode_record(number, name, arrays, **options)
    with ShardWriter(path, map_size) as writer:
        for key, value in records.items():
            writer.put(key, memoryview(value))
    path.with_name(f".tmp-{path.name}").replace(path)


def pread(file, entry):
    file.seek(entry.offset)
    return file.read(entry.nbytes)

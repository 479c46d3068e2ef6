"""Records: what is encoded comes back; what is damaged is noticed."""

import struct

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.store.record import (
    ALIGNMENT,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    VALUE_OFFSET,
    DamageError,
    StoredFile,
    check_body,
    encode_record,
    parse_header,
    parse_prefix,
)
from tests.support import same, sample_names, samples_of, schemas


def parse(record):
    prefix = parse_prefix(record)
    start = PREFIX_BYTES + prefix.header_bytes
    header = parse_header(prefix, record[PREFIX_BYTES:start])
    return prefix, header, record[start:]


@given(st.data(), st.integers(0, 2**64 - 1))
@settings(max_examples=100, deadline=None)
def test_any_sample_comes_back(data, number):
    schema = data.draw(schemas())
    samples = data.draw(samples_of(schema))
    files = (StoredFile("a/\udcff.bin", "kitti_bin", {}, 12),)
    for sample in samples:
        record = bytes(encode_record(number, sample.name, sample.arrays, split=sample.split, files=files))
        prefix, header, body = parse(record)
        assert (prefix.number, prefix.record_bytes) == (number, len(record))
        assert (header.name, header.split, header.files) == (sample.name, sample.split, files)
        check_body(header, body)
        assert [item.name for item in header.fields] == list(sample.arrays)
        for item in header.fields:
            assert same(item.array(body), np.asarray(sample.arrays[item.name]))


def test_fields_start_at_multiples_of_64_of_a_large_values_place():
    arrays = {"points": np.ones((5, 4), np.float32), "semantic": np.ones(5, np.uint16), "pose": np.eye(4)}
    prefix, header, _ = parse(bytes(encode_record(3, "n", arrays)))
    start = VALUE_OFFSET + PREFIX_BYTES + prefix.header_bytes
    assert all((start + item.offset) % ALIGNMENT == 0 for item in header.fields)


@pytest.mark.parametrize("order", ["F", "strided", "big-endian", "0-d", "empty"])
def test_arrays_of_any_memory_form_are_stored_as_their_values(order):
    array = {
        "F": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        "strided": np.arange(48, dtype=np.int16)[::-3],
        "big-endian": np.arange(5, dtype=">u4"),
        "0-d": np.array(2.5),
        "empty": np.empty((0, 4), np.float32),
    }[order]
    _, header, body = parse(bytes(encode_record(0, "n", {"x": array})))
    stored = header.fields[0].array(body)
    assert stored.shape == array.shape
    assert stored.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(stored, array)


def test_a_reused_buffer_gives_the_same_bytes_as_a_fresh_one():
    buffer = bytearray(b"\xff" * 5000)
    for count in (100, 3, 0, 400):
        arrays = {"a": np.arange(count, dtype=np.uint8), "b": np.arange(count, dtype=np.float64)}
        with encode_record(7, "n", arrays, buffer=buffer) as reused:
            assert bytes(reused) == bytes(encode_record(7, "n", arrays))


def test_a_record_larger_than_lmdb_takes_is_refused_before_memory_is_taken():
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (MAX_RECORD_BYTES + 1,), (0,))
    with pytest.raises(ValueError, match="at most"):
        encode_record(0, "n", {"x": huge})


@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_every_flipped_bit_of_a_record_is_noticed(bits):
    arrays = {"points": np.arange(20, dtype=np.float32).reshape(5, 4), "semantic": np.arange(5, dtype=np.uint16)}
    record = bytearray(encode_record(5, "sequences/00/velodyne/000005", arrays, split="train"))
    expected = bytes(record)
    for position in range(len(record)):
        record[position] ^= bits
        with pytest.raises(DamageError):
            prefix, header, body = parse(bytes(record))
            # Prefix numbers are held against the index by whoever knows the row.
            if (prefix.number, prefix.record_bytes) != (5, len(record)):
                raise DamageError("other numbers", "ours", kind="prefix")
            check_body(header, body)
        record[position] ^= bits
    assert bytes(record) == expected


@given(st.binary(max_size=200), st.data())
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_parser_raise_anything_else(noise, data):
    valid = bytes(encode_record(5, "n", {"x": np.arange(4)}))
    cut = data.draw(st.integers(0, len(valid)))
    for blob in (noise, valid[:cut] + noise, valid[:16] + noise):
        try:
            prefix, header, body = parse(blob)
            check_body(header, body)
        except DamageError:
            continue
        assert blob.startswith(valid)  # what is taken for a record is one
        assert (prefix.number, header.name) == (5, "n")


def odd_values():
    plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=9)
    return st.recursive(plain, lambda v: st.lists(v, max_size=8) | st.dictionaries(st.text(max_size=5), v, max_size=4))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_header_of_right_checksum_makes_the_parser_raise_anything_else(data):
    """A header can be wrong in every way and still carry a right checksum: one made to do harm."""
    field = ["x", "<i8", [4], 0, 32, None, bytes(8), {}]
    file = [b"a.bin", "kitti_bin", {"x": "x"}, 32]
    header = {"name": b"n", "split": "", "fields": [field], "files": [file], "meta": {}}
    target = data.draw(st.sampled_from([header, field, file, file[2]]))
    key = data.draw(st.sampled_from(list(target) if isinstance(target, dict) else range(len(target))))
    target[key] = data.draw(odd_values())
    packed = msgpack.packb(header, use_bin_type=True)
    packed = packed.ljust(-(-(48 + len(packed)) // 64) * 64 - 48, b"\0")
    digest = xxhash.xxh3_64_intdigest(packed)
    size = 32 + len(packed) + 32
    record = struct.pack("<4sHHQIIQ", b"FLR1", 1, 0, 5, len(packed), size, digest) + packed + bytes(32)
    try:
        _, found, body = parse(record)
    except DamageError:
        return
    assert [item.array(body).nbytes for item in found.fields] == [32]


@given(sample_names())
@settings(max_examples=50, deadline=None)
def test_names_come_back(name):
    assert parse(bytes(encode_record(1, name, {})))[1].name == name

"""What tests make datasets of: random schemas and arrays, hand-made trees; and children that may die."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastload.packing.publish import contents_of, publish_dataset
from fastload.schema import RESERVED_NAMES, Field, Schema
from fastload.store import fs
from fastload.store.files import describe_blocks
from fastload.store.identity import Identity, Kind
from fastload.store.manifest import read_manifest, write_manifest
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY, StoredFile, encode_record
from fastload.store.shard import ShardWriter, map_bytes, publish_shard, shard_file

REPO = Path(__file__).resolve().parents[1]
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip


@dataclass(frozen=True)
class MadeSample:
    name: str
    split: str
    arrays: Mapping[str, np.ndarray]


def field_names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z_\u00e4\u4e2d][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
        lambda name: name.isidentifier() and name not in RESERVED_NAMES
    )


def sample_names() -> st.SearchStrategy[str]:
    """Names of any kind: non-ASCII, long, with the surrogates that stand for bytes that are not UTF-8."""
    plain = st.text(min_size=1, max_size=12)
    long = st.text(min_size=300, max_size=400)
    raw = st.binary(min_size=1, max_size=12).map(os.fsdecode)
    return st.one_of(plain.filter(_encodes), long.filter(_encodes), raw)


def _encodes(name: str) -> bool:
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == name
    except UnicodeEncodeError:
        return False


@st.composite
def schemas(draw) -> Schema:
    fields = []
    for name in draw(st.lists(field_names(), unique=True, min_size=1, max_size=5)):
        kind = draw(st.sampled_from(["array", "array", "array", "bytes", "json"]))
        if kind != "array":
            fields.append(Field(name, kind))
            continue
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        rows = draw(st.sampled_from(["points", "points", "boxes", None]))
        columns = tuple(f"c{i}" for i in range(shape[-1])) if shape and draw(st.booleans()) else ()
        fields.append(Field(name, "array", draw(st.sampled_from(DTYPES)), shape, rows, columns))
    return Schema(tuple(fields))


@st.composite
def samples_of(draw, schema: Schema, max_samples: int = 6) -> list[MadeSample]:
    names = draw(st.lists(sample_names(), unique=True, max_size=max_samples))
    made = []
    for name in names:
        split = draw(st.sampled_from(["train", "val", "prüfung"]))
        counts = {group: draw(st.integers(0, 40)) for group in schema.row_groups}
        present = [field for field in schema if draw(st.booleans())]
        made.append(MadeSample(name, split, {f.name: draw(_array_of(f, counts)) for f in present}))
    return made


def _array_of(field: Field, counts: Mapping[str, int]) -> st.SearchStrategy[np.ndarray]:
    if field.kind != "array":
        return st.binary(max_size=300).map(lambda data: np.frombuffer(data, np.uint8))
    shape = field.full_shape(counts.get(field.rows or "", 0))
    size = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
    seeds = st.integers(0, 2**32 - 1)
    return seeds.map(lambda seed: _from_bytes(np.random.default_rng(seed).bytes(size), field.dtype, shape))


def _from_bytes(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return (np.frombuffer(data, np.uint8) & 1).astype(bool).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


arrays = hnp.arrays


def in_order(samples: Iterable[MadeSample]) -> list[MadeSample]:
    """As the store keeps them: by split, then by name, as bytes."""
    key = lambda s: (s.split.encode(), s.name.encode("utf-8", "surrogateescape"))  # noqa: E731
    return sorted(samples, key=key)


def write_store(
    root: Path,
    schema: Schema,
    samples: Sequence[MadeSample],
    per_shard: int = 3,
    commit_bytes: int = 1 << 26,
    files: Sequence[StoredFile] = (),
    attachments: Mapping[str, bytes] | None = None,
) -> list[MadeSample]:
    """Write a dataset of these samples with the store's own writers. Gives them in the store's order.

    Attachments go into the last shard.
    """
    ordered = in_order(samples)
    fs.make_folder(root / "shards")
    results = []
    kind = Kind("made", {}, schema)
    for number, first in enumerate(range(0, len(ordered), per_shard)):
        group = ordered[first : first + per_shard]
        records = [
            bytes(encode_record(first + i, sample.name, sample.arrays, split=sample.split, files=files))
            for i, sample in enumerate(group)
        ]
        path = root / shard_file(number)
        sizes = [*map(len, records), *map(len, (attachments or {}).values())]
        with ShardWriter(path, map_bytes(sizes), commit_bytes) as writer:
            for i, record in enumerate(records):
                writer.put(first + i, memoryview(record))
            more = first + per_shard < len(ordered)
            attached = {} if more else attachments or {}
            for key, (path_there, data) in enumerate(attached.items(), ATTACHMENT_BIT):
                writer.put(key, encode_record(key, path_there, {"data": np.frombuffer(data, np.uint8)}))
            before = ordered[first - 1].name.encode("utf-8", "surrogateescape") if first else b""
            writer.put(INFO_KEY, Identity(kind, first, len(group), 0, len(attached), before, more).record())
        results.append(publish_shard(root, number, schema))
    splits: dict[str, tuple[tuple[int, int], ...]] = {}
    for number, sample in enumerate(ordered):
        start = splits.get(sample.split, ((number, number),))[0][0]
        splits[sample.split] = ((start, number + 1),)
    source_bytes = len(ordered) * sum(file.nbytes for file in files) + sum(map(len, (attachments or {}).values()))
    publish_dataset(root, contents_of(kind, results, splits, source_bytes))
    return ordered


def rebind(root: Path) -> None:
    """Let the manifest say that index and names are as they are now: damage that its digests do not tell."""
    manifest = read_manifest(root)
    files = [describe_blocks(root, file) for file in ("index.npy", "names.bin", "names.npy")]
    write_manifest(root, replace(manifest, index=files[0], names=(files[1], files[2])))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in dtype, shape and every byte (NaN payloads too)."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def write_tree(root: Path, scans: Mapping[str, int], *, labels: bool = True, seed: int = 0) -> Path:
    """A SemanticKITTI tree of random plausible scans: `{"00/000000": 24, ...}` gives the points of each."""
    rng = np.random.default_rng(seed)
    for name, count in scans.items():
        sequence, stem = name.split("/")
        folder = root / "sequences" / sequence
        (folder / "velodyne").mkdir(parents=True, exist_ok=True)
        points = rng.uniform(-40, 40, (count, 4)).astype("<f4")
        points[:, 3] = rng.uniform(0, 1, count)
        points.tofile(folder / "velodyne" / f"{stem}.bin")
        if labels:
            (folder / "labels").mkdir(exist_ok=True)
            values = rng.choice(np.array([0, 10, 40, 50, 70, 252], "<u4"), count) | rng.integers(0, 9, count) << 16
            values.astype("<u4").tofile(folder / "labels" / f"{stem}.label")
    return root


def skip_where_pathlib_keeps(function: str) -> None:
    """Skip a test that makes `os.stat` fail where pathlib does not ask the `os` module."""
    if function in ("stat", "lstat") and sys.version_info < (3, 11):
        pytest.skip("pathlib of Python 3.10 keeps os.stat as it was at import: it cannot be made to fail")


def tree_bytes(root: Path) -> dict[str, bytes]:
    """All files below `root` with their bytes."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def run_python(code: str, *arguments: object, timeout: float = 120, **options) -> subprocess.CompletedProcess[str]:
    """Run code in a child process: one that may die of a signal without ending the tests."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=REPO, **options)


def run_fastload(*arguments: object, timeout: float = 120, **options) -> subprocess.CompletedProcess[str]:
    """Run the command in a child process."""
    command = [sys.executable, "-m", "fastload", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=REPO, **options)

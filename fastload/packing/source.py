"""Reading one sample's source files: sizes for the plan, arrays for the shard, problems for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload.errors import FormatError
from fastload.formats.registry import get_format
from fastload.layouts.base import SourceFile, SourceSample
from fastload.packing.files import file_size, located, read_sized
from fastload.packing.misfits import SizedFiles, count_rows
from fastload.schema import Problem, Schema
from fastload.store.record import StoredFile
from fastload.units import portable_name


@dataclass(frozen=True)
class Measured:
    """A sample whose files were found and whose sizes fit together.

    Attributes:
        sample: as the layout gave it.
        sizes: bytes of each of its files.
        rows: rows of each ragged group of the schema that it has.
        payload_bytes: bytes of its fields as they will be stored.
    """

    sample: SourceSample
    sizes: Mapping[str, int]
    rows: Mapping[str, int]
    payload_bytes: int


@dataclass(frozen=True)
class Loaded:
    """A sample's arrays in schema order, and the files that they give back."""

    arrays: Mapping[str, NDArray[np.generic]]
    files: tuple[StoredFile, ...]
    nonfinite: int
    doubts: tuple[Problem, ...]


def files_of(sample: SourceSample) -> dict[str, SourceFile]:
    """The different files of a sample, by path."""
    return {source.path: source for source in sample.fields.values() if isinstance(source, SourceFile)}


def measure(root: Path, schema: Schema, sample: SourceSample) -> Measured | list[Problem]:
    """Look at the sizes of a sample's files; nothing is read of files whose sizes fit.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    problems: list[Problem] = []
    sizes: dict[str, int] = {}
    for path in files_of(sample):
        size = file_size(root, path, sample.name)
        if isinstance(size, Problem):
            problems.append(size)
        else:
            sizes[path] = size
    if problems:
        return problems
    files = files_of(sample)
    sized = SizedFiles(root, sample.name, sizes, {path: count_rows(files[path], sizes[path]) for path in files})
    groups = [_group_files(schema, sample, group) for group in schema.row_groups]
    grouped = {file.path for group in groups for file in group}
    others = [file for path, file in files.items() if path not in grouped]
    return sized.misfits(groups, others) or _measured(schema, sample, sized)


def load(root: Path, schema: Schema, measured: Measured) -> Loaded:
    """Read a sample's files and decode them.

    Raises:
        FormatError: with all problems of the sample, when a file is not what its format says.
        ResourceError: a limit of the machine was met.
    """
    sample = measured.sample
    decoded: dict[str, Mapping[str, NDArray[np.generic]]] = {}
    problems: list[Problem] = []
    doubts: list[Problem] = []
    nonfinite = 0
    for path, source in files_of(sample).items():
        data = read_sized(root, path, measured.sizes[path], sample.name)
        if isinstance(data, Problem):
            problems.append(data)
            continue
        file_format = get_format(source.format)
        try:
            parts = file_format.decode(data)
        except FormatError as error:
            problems += located(error, path, sample.name)
            continue
        inspection = file_format.inspect(parts)
        nonfinite += inspection.nonfinite
        doubts += [
            Problem(path, sample.name, None, d.found, d.expected, d.fix, kind="doubt") for d in inspection.doubts
        ]
        decoded[path] = parts
    if problems:
        raise FormatError(problems=problems + doubts)
    arrays = {name: _field_array(sample, name, decoded) for name in schema.names if name in sample.fields}
    return Loaded(arrays, _stored_files(sample, measured.sizes), nonfinite, tuple(doubts))


def read_attachment(root: Path, path: str, size: int) -> NDArray[np.uint8] | Problem:
    """An attachment's bytes, (size,) uint8, or what is wrong with it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    data = read_sized(root, path, size, None)
    return data if isinstance(data, Problem) else np.frombuffer(data, np.uint8)


def _measured(schema: Schema, sample: SourceSample, sized: SizedFiles) -> Measured:
    rows: dict[str, int] = {}
    payload = 0
    for field in schema:
        source = sample.fields.get(field.name)
        if source is None:
            continue
        count = sized.count(source) if isinstance(source, SourceFile) else len(source) if field.rows else None
        if isinstance(source, SourceFile) and field.rows is not None and count is not None:
            rows.setdefault(field.rows, count)
        payload += field.row_bytes * ((count or 0) if field.rows else 1) if field.kind == "array" else 0
    return Measured(sample, sized.sizes, rows, payload)


def _group_files(schema: Schema, sample: SourceSample, group: str) -> list[SourceFile]:
    """The different files that give the rows of a group, in the order of the schema's fields."""
    sources = (sample.fields.get(field.name) for field in schema if field.rows == group)
    return list({source.path: source for source in sources if isinstance(source, SourceFile)}.values())


def _field_array(
    sample: SourceSample, name: str, decoded: Mapping[str, Mapping[str, NDArray[np.generic]]]
) -> NDArray[np.generic]:
    source = sample.fields[name]
    return decoded[source.path][source.part or name] if isinstance(source, SourceFile) else source


def _stored_files(sample: SourceSample, sizes: Mapping[str, int]) -> tuple[StoredFile, ...]:
    stored = []
    for path, source in files_of(sample).items():
        parts = {
            name: other.part or name
            for name, other in sample.fields.items()
            if isinstance(other, SourceFile) and other.path == path
        }
        stored.append(StoredFile(portable_name(path), source.format, parts, sizes[path]))
    return tuple(stored)

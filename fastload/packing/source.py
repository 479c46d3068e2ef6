"""Reading one sample's source files: sizes for the plan, arrays for the shard, problems for the report."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload.errors import FormatError
from fastload.formats.registry import get_format
from fastload.formats.rows import explain_counts
from fastload.layouts.base import SourceFile, SourceSample
from fastload.schema import Problem, Schema
from fastload.store.record import StoredFile

_HEAD_BYTES = 4096
"""How much of a file of a wrong size is read to guess what it is."""


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
    """Look at the sizes of a sample's files; nothing is read of files whose sizes fit."""
    problems: list[Problem] = []
    sizes: dict[str, int] = {}
    counts: dict[str, int | None] = {}
    for path, source in files_of(sample).items():
        size = file_size(root, path, sample.name)
        if isinstance(size, Problem):
            problems.append(size)
            continue
        sizes[path] = size
        try:
            counts[path] = get_format(source.format).rows(size)
        except FormatError as error:
            problems += _explain_bad_size(root, source, size, sample.name, error)
    if problems:
        return problems
    return _fit_rows(root, schema, sample, sizes, counts)


def file_size(root: Path, path: str, sample: str | None) -> int | Problem:
    """Size of a regular file that can be read, or what is wrong with it."""
    try:
        status = (root / path).stat()
    except OSError as error:
        return _unreadable(path, sample, error)
    if not stat.S_ISREG(status.st_mode):
        return Problem(path, sample, None, "not a regular file", "a file with data", "remove it", kind="unreadable")
    if not os.access(root / path, os.R_OK):
        return _unreadable(path, sample, PermissionError(13, "Permission denied"))
    return status.st_size


def load(root: Path, schema: Schema, measured: Measured) -> Loaded:
    """Read a sample's files and decode them.

    Raises:
        FormatError: with all problems of the sample, when a file is not what its format says.
    """
    sample = measured.sample
    decoded: dict[str, Mapping[str, NDArray[np.generic]]] = {}
    problems: list[Problem] = []
    doubts: list[Problem] = []
    nonfinite = 0
    for path, source in files_of(sample).items():
        data = _read(root, path, measured.sizes[path], sample.name)
        if isinstance(data, Problem):
            problems.append(data)
            continue
        file_format = get_format(source.format)
        try:
            parts = file_format.decode(data)
        except FormatError as error:
            problems += _located(error, path, sample.name)
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
    """An attachment's bytes, (size,) uint8, or what is wrong with it."""
    data = _read(root, path, size, None)
    return data if isinstance(data, Problem) else np.frombuffer(data, np.uint8)


def _fit_rows(
    root: Path, schema: Schema, sample: SourceSample, sizes: Mapping[str, int], counts: Mapping[str, int | None]
) -> Measured | list[Problem]:
    problems: list[Problem] = []
    first: dict[str, SourceFile] = {}
    rows: dict[str, int] = {}
    payload = 0
    for field in schema:
        source = sample.fields.get(field.name)
        if source is None:
            continue
        count = counts[source.path] if isinstance(source, SourceFile) else len(source) if field.rows else 0
        if isinstance(source, SourceFile) and field.rows is not None and count is not None:
            anchor = first.setdefault(field.rows, source)
            if count != rows.setdefault(field.rows, count) and anchor.path != source.path:
                counted = (rows[field.rows], count)
                explained = _explain_rows(root, anchor, source, sizes, counted, sample.name)
                problems += [problem for problem in explained if problem not in problems]
        payload += field.row_bytes * ((count or 0) if field.rows else 1) if field.kind == "array" else 0
    if problems:
        return problems
    return Measured(sample, sizes, rows, payload)


def _explain_rows(
    root: Path,
    anchor: SourceFile,
    other: SourceFile,
    sizes: Mapping[str, int],
    counts: tuple[int, int],
    sample: str,
) -> list[Problem]:
    """Why two files do not have the same number of rows; perhaps one is of another kind altogether."""
    foreign = [*_explain_content(root, anchor, sizes, sample), *_explain_content(root, other, sizes, sample)]
    if foreign:
        return foreign
    first, second = sizes[anchor.path], sizes[other.path]
    doubt = explain_counts(first, first // counts[0], second, second // counts[1])
    assert doubt is not None  # the counts differ
    found = f"{doubt.found} (points: {anchor.path})"
    return [Problem(other.path, sample, None, found, doubt.expected, doubt.fix, kind="rows")]


def _explain_content(root: Path, source: SourceFile, sizes: Mapping[str, int], sample: str) -> list[Problem]:
    """What is wrong with a file's content, where its size alone says nothing."""
    data = _read(root, source.path, sizes[source.path], sample)
    if isinstance(data, Problem):
        return [data]
    try:
        get_format(source.format).decode(data)
    except FormatError as error:
        return _located(error, source.path, sample)
    return []


def _explain_bad_size(root: Path, source: SourceFile, size: int, sample: str, error: FormatError) -> list[Problem]:
    try:
        with (root / source.path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
        get_format(source.format).rows(size, head)
    except OSError:
        pass
    except FormatError as better:
        error = better
    return _located(error, source.path, sample)


def _located(error: FormatError, path: str, sample: str) -> list[Problem]:
    """The problems of a format, which knows no paths, with path and sample."""
    if not error.problems:
        return [Problem(path, sample, None, str(error), "", "", kind="format")]
    return [replace(problem, path=path, sample=sample) for problem in error.problems]


def _read(root: Path, path: str, size: int, sample: str | None) -> bytes | Problem:
    try:
        data = (root / path).read_bytes()
    except OSError as error:
        return _unreadable(path, sample, error)
    if len(data) != size:
        return Problem(
            path, sample, None, f"{len(data):,} bytes, {size:,} when packing began", "a file that does not change",
            "wait until nothing writes to the source, then pack again", kind="changed",
        )  # fmt: skip
    return data


def _unreadable(path: str, sample: str | None, error: OSError) -> Problem:
    found = f"cannot be read ({error.strerror or error})"
    return Problem(path, sample, None, found, "a readable file", "mend or remove it", kind="unreadable")


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
        stored.append(StoredFile(path, source.format, parts, sizes[path]))
    return tuple(stored)

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
from fastload.formats.base import Doubt
from fastload.formats.registry import get_format
from fastload.formats.rows import explain_counts, fitting_width
from fastload.formats.sniff import HEAD_BYTES, TEXTUAL, foreign
from fastload.layouts.base import SourceFile, SourceSample
from fastload.oserrors import raise_if_exhausted
from fastload.regular import open_regular, read_regular
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
    sized = _Sized(
        root, sample.name, sizes, {path: _rows(file, sizes[path]) for path, file in files_of(sample).items()}
    )
    return sized.misfits(schema, sample) or _measured(schema, sample, sized)


def file_size(root: Path, path: str, sample: str | None) -> int | Problem:
    """Size of a regular file that can be read, or what is wrong with it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    file = root / path
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(path, sample, None, "not a regular file", "a file with data", "remove it", kind="unreadable")
        if not os.access(file, os.R_OK):
            open_regular(file).close()  # says why
    except OSError as error:
        return _unreadable(path, sample, error)
    return status.st_size


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
    """An attachment's bytes, (size,) uint8, or what is wrong with it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    data = _read(root, path, size, None)
    return data if isinstance(data, Problem) else np.frombuffer(data, np.uint8)


def _rows(source: SourceFile, size: int) -> int | FormatError | None:
    """The rows of a file of this size, None where the size does not tell, the error where it does not fit."""
    try:
        return get_format(source.format).rows(size)
    except FormatError as error:
        return error


def _measured(schema: Schema, sample: SourceSample, sized: _Sized) -> Measured:
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


@dataclass(frozen=True)
class _Sized:
    """A sample's files with their sizes, and why some do not fit.

    The first file of a group (the points) is the measure of the others: while it is fine itself, a file that
    has another number of rows is compared with it before its own size and content are blamed. Labels of one
    byte each have any size, and look like text.

    Attributes:
        root: the source's root.
        name: the sample's name.
        sizes: bytes of each file.
        counts: rows of each file, None where the size does not tell, an error where it fits no number of rows.
    """

    root: Path
    name: str
    sizes: Mapping[str, int]
    counts: Mapping[str, int | FormatError | None]

    def count(self, file: SourceFile) -> int | None:
        """How many rows a file has, None where that is not known."""
        found = self.counts[file.path]
        return None if isinstance(found, FormatError) else found

    def misfits(self, schema: Schema, sample: SourceSample) -> list[Problem]:
        """What is wrong with the sizes of the files, each told once."""
        found: list[Problem] = []
        for group in schema.row_groups:
            found += self._group_misfits(_group_files(schema, sample, group))
        in_groups = {file.path for group in schema.row_groups for file in _group_files(schema, sample, group)}
        for path, file in files_of(sample).items():
            if path not in in_groups:
                found += self._explain_size(file)
        return list(dict.fromkeys(found))

    def _group_misfits(self, files: list[SourceFile]) -> list[Problem]:
        known = [file for file in files if self.counts[file.path] is not None]
        if not known:
            return []
        first, *others = known
        expected = self.count(first)
        if expected is None:
            return [problem for file in known for problem in self._explain_size(file)]
        odd = [file for file in others if self.count(file) != expected]
        if not odd:
            return []
        blamed = self._explain_content(first)
        if blamed:
            return [*blamed, *(problem for file in odd for problem in self._explain_alone(file))]
        return [problem for file in odd for problem in self._explain_beside(first, expected, file)]

    def _explain_beside(self, first: SourceFile, expected: int, file: SourceFile) -> list[Problem]:
        """Why a file does not have as many rows as the first of its group, which is fine."""
        size, row_bytes = self.sizes[file.path], get_format(file.format).row_bytes
        compared = row_bytes is not None and fitting_width(expected, size) and not self._is_marked(file)
        if not compared:
            alone = self._explain_alone(file)
            if alone:
                return alone
        doubt = self._compare(first, expected, file)
        found = f"{doubt.found} (points: {first.path})"
        return [Problem(file.path, self.name, None, found, doubt.expected, doubt.fix, kind="rows")]

    def _compare(self, first: SourceFile, expected: int, file: SourceFile) -> Doubt:
        widths = get_format(first.format).row_bytes, get_format(file.format).row_bytes
        if widths[0] is not None and widths[1] is not None:
            doubt = explain_counts(self.sizes[first.path], widths[0], self.sizes[file.path], widths[1])
            if doubt is not None:
                return doubt
        found = f"{self.count(file):,} rows, {expected:,} in the sample's first file"
        return Doubt(found, f"{expected:,} rows", "write one row for every point of the scan, or get both files again")

    def _is_marked(self, file: SourceFile) -> bool:
        """Whether a file's first bytes are another kind's for certain."""
        what = foreign(self._head(file))
        return what is not None and what not in TEXTUAL

    def _explain_alone(self, file: SourceFile) -> list[Problem]:
        return self._explain_size(file) or self._explain_content(file)

    def _explain_size(self, file: SourceFile) -> list[Problem]:
        """Why a file of this size has no whole number of rows; its first bytes help to say what it is."""
        error = self.counts[file.path]
        if not isinstance(error, FormatError):
            return []
        try:
            get_format(file.format).rows(self.sizes[file.path], self._head(file))
        except FormatError as better:
            error = better
        return _located(error, file.path, self.name)

    def _explain_content(self, file: SourceFile) -> list[Problem]:
        """What is wrong with a file's content, where its size alone says nothing."""
        data = _read(self.root, file.path, self.sizes[file.path], self.name)
        if isinstance(data, Problem):
            return [data]
        try:
            get_format(file.format).decode(data)
        except FormatError as error:
            return _located(error, file.path, self.name)
        return []

    def _head(self, file: SourceFile) -> bytes:
        """The file's first bytes, none where they cannot be read."""
        try:
            with open_regular(self.root / file.path) as opened:
                return opened.read(HEAD_BYTES) or b""
        except OSError as error:
            raise_if_exhausted(error, file.path)
            return b""


def _group_files(schema: Schema, sample: SourceSample, group: str) -> list[SourceFile]:
    """The different files that give the rows of a group, in the order of the schema's fields."""
    sources = (sample.fields.get(field.name) for field in schema if field.rows == group)
    return list({source.path: source for source in sources if isinstance(source, SourceFile)}.values())


def _located(error: FormatError, path: str, sample: str) -> list[Problem]:
    """The problems of a format, which knows no paths, with path and sample."""
    if not error.problems:
        return [Problem(path, sample, None, str(error), "", "", kind="format")]
    return [replace(problem, path=path, sample=sample) for problem in error.problems]


def _read(root: Path, path: str, size: int, sample: str | None) -> bytes | Problem:
    try:
        data = read_regular(root / path)
    except OSError as error:
        return _unreadable(path, sample, error)
    if len(data) != size:
        return Problem(
            path, sample, None, f"{len(data):,} bytes, {size:,} when packing began", "a file that does not change",
            "wait until nothing writes to the source, then pack again", kind="changed",
        )  # fmt: skip
    return data


def _unreadable(path: str, sample: str | None, error: OSError) -> Problem:
    raise_if_exhausted(error, path)
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
        stored.append(StoredFile(portable_name(path), source.format, parts, sizes[path]))
    return tuple(stored)

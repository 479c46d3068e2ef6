"""Why the files of one sample do not fit together: which of them is wrong, and what it is instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastload.errors import FormatError
from fastload.formats.base import Doubt
from fastload.formats.registry import get_format
from fastload.formats.rows import explain_counts, fitting_width
from fastload.formats.sniff import TEXTUAL, foreign
from fastload.layouts.base import SourceFile
from fastload.packing.files import located, read_head, read_sized
from fastload.schema import Problem


def count_rows(file: SourceFile, size: int) -> int | FormatError | None:
    """The rows of a file of this size, None where the size does not tell, the error where it does not fit."""
    try:
        return get_format(file.format).rows(size)
    except FormatError as error:
        return error


@dataclass(frozen=True)
class SizedFiles:
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

    def misfits(self, groups: Iterable[list[SourceFile]], others: Iterable[SourceFile]) -> list[Problem]:
        """What is wrong with the sizes of the files, each told once.

        Args:
            groups: files that must have the same number of rows, the measure of the others first.
            others: the rest.
        """
        found = [problem for files in groups for problem in self._group_misfits(files)]
        found += [problem for file in others for problem in self._explain_size(file)]
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
        if not self._has_other_width(first, expected, file):
            alone = self._explain_alone(file)
            if alone:
                return alone
        doubt = self._compare(first, expected, file)
        found = f"{doubt.found} (points: {first.path})"
        return [Problem(file.path, self.name, None, found, doubt.expected, doubt.fix, kind="rows")]

    def _has_other_width(self, first: SourceFile, expected: int, file: SourceFile) -> bool:
        """Whether a file would fit if its rows had another width, and is no other kind of file for certain."""
        fixed = all(get_format(each.format).row_bytes is not None for each in (first, file))
        if not fixed or not fitting_width(expected, self.sizes[file.path]):
            return False
        what = foreign(read_head(self.root, file.path))
        return what is None or what in TEXTUAL

    def _compare(self, first: SourceFile, expected: int, file: SourceFile) -> Doubt:
        widths = get_format(first.format).row_bytes, get_format(file.format).row_bytes
        if widths[0] is not None and widths[1] is not None:
            doubt = explain_counts(self.sizes[first.path], widths[0], self.sizes[file.path], widths[1])
            if doubt is not None:
                return doubt
        found = f"{self.count(file):,} rows, {expected:,} in the sample's first file"
        return Doubt(found, f"{expected:,} rows", "write one row for every point of the scan, or get both files again")

    def _explain_alone(self, file: SourceFile) -> list[Problem]:
        return self._explain_size(file) or self._explain_content(file)

    def _explain_size(self, file: SourceFile) -> list[Problem]:
        """Why a file of this size has no whole number of rows; its first bytes help to say what it is."""
        error = self.counts[file.path]
        if not isinstance(error, FormatError):
            return []
        try:
            get_format(file.format).rows(self.sizes[file.path], read_head(self.root, file.path))
        except FormatError as better:
            error = better
        return located(error, file.path, self.name)

    def _explain_content(self, file: SourceFile) -> list[Problem]:
        """What is wrong with a file's content, where its size alone says nothing."""
        data = read_sized(self.root, file.path, self.sizes[file.path], self.name)
        if isinstance(data, Problem):
            return [data]
        try:
            get_format(file.format).decode(data)
        except FormatError as error:
            return located(error, file.path, self.name)
        return []

"""What a layout is: a directory tree of files, seen as samples, splits and attachments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fastload.schema import Problem, Schema


@dataclass(frozen=True)
class SourceFile:
    """A file that gives one field, or several.

    Attributes:
        path: relative to the source's root, with `/` between folders, as this process's `os` functions spell
            names (non-UTF-8 bytes as surrogates).
        format: name of the format that reads it (see `fastload.formats`).
        part: which of the arrays that the format gives is meant; "" for the one named like the field.
    """

    path: str
    format: str
    part: str = ""


@dataclass(frozen=True)
class SourceSample:
    """One sample as the source has it.

    Attributes:
        name: its name, unique in the dataset; where it is made of a file's name, as
            `fastload.units.portable_name` writes that, so that it is the same under every locale.
        split: the split that it belongs to.
        fields: for each field that it has, the file that gives it, or the array itself where the layout
            computes it from attachments (a pose).
    """

    name: str
    split: str
    fields: Mapping[str, SourceFile | NDArray[np.generic]]


@dataclass(frozen=True)
class Note:
    """Something that is no error but that the user should be told, such as a missing optional file."""

    path: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@runtime_checkable
class Layout(Protocol):
    """A directory tree of files, seen as samples."""

    @property
    def name(self) -> str:
        """The word that selects this layout, as in `fastload pack NAME SRC OUT`."""

    @property
    def schema(self) -> Schema:
        """The fields that its samples can have."""

    def detect(self, root: Path) -> bool:
        """Whether `root` looks like this layout; reads names only, and few of them."""

    def samples(self, root: Path, **options: Any) -> Iterator[SourceSample | Problem | Note]:
        """All samples below `root`, in any order, with the problems and notes met on the way.

        Raises `UsageError` for an option that it does not know or that has a wrong value.
        """

    def attachments(self, root: Path) -> Iterator[str]:
        """Files that belong to a sequence or the whole dataset, as `SourceFile.path` writes them.

        An `OSError` of this or of `samples` stops the pack, which names the path in it: whatever a layout
        cannot look into would else be left out silently.
        """


@runtime_checkable
class PredictionLayout(Protocol):
    """A layout whose benchmark also says in which files predictions for its samples are handed in.

    `fastload.export_labels` writes them: a layout offers this by having the method.
    """

    def prediction_file(self, sample: str) -> SourceFile:
        """The file that predictions for the sample of this name belong into, relative to their folder.

        Its format's parts are `semantic`, or `semantic` and `instance`.

        Raises `SampleError` for a name that is none of this layout.
        """

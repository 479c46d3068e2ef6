"""Which sequence belongs to which split: a mapping, or a YAML or JSON file with one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastload.errors import UsageError
from fastload.textfiles import ContentError, read_content
from fastload.units import brief

EXPECTED = "a mapping from split to its list of sequences, such as {train: [0, 1], val: [8]}"
UPSTREAM_KEY = "split"
"""Where the files of semantic-kitti-api keep that mapping."""
UPSTREAM_NAMES = {"valid": "val"}
MAX_SEQUENCE = 10**9
"""Larger numbers name no sequence of any data set."""


@dataclass(frozen=True)
class Splits:
    """The split of each sequence.

    Attributes:
        of: sequence -> split; sequences as `fastload.units.portable_name` writes their folders' names.
        names: all splits, in the order in which they were given.
        official: whether they are the dataset's own rather than the user's.
    """

    of: Mapping[str, str]
    names: tuple[str, ...]
    official: bool = False


def make_splits(mapping: Mapping[Any, Any], source: str = "splits", official: bool = False) -> Splits:
    """The splits that a mapping describes; sequences are text or numbers (8 is "08").

    The form of semantic-kitti-api (a mapping under `split`) is understood, and its "valid" called "val" as
    everywhere else here.

    Raises `UsageError`, which names `source`, for any other form and for a sequence that is in two splits.
    """
    upstream = mapping.get(UPSTREAM_KEY)
    if isinstance(upstream, Mapping):
        for name, here in UPSTREAM_NAMES.items():
            if name in upstream and here in upstream:
                raise UsageError(f"{source}: splits {name!r} and {here!r} both mean {here!r}; expected one of them")
        mapping = {UPSTREAM_NAMES.get(name, name): sequences for name, sequences in upstream.items()}
    if not mapping:
        raise UsageError(f"{source}: no splits; expected {EXPECTED}")
    sequences = {split: _sequences(split, names, source) for split, names in mapping.items()}
    return Splits(_invert(sequences, source), tuple(sequences), official)


def read_splits(value: object) -> Splits:
    """The splits that a user gave: a mapping, or the path of a YAML or JSON file with one.

    Raises `UsageError`, naming the file, for anything that is not.
    """
    if isinstance(value, Mapping):
        return make_splits(value)
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"splits: found {brief(value)}; expected {EXPECTED}, or a YAML or JSON file with one")
    path = os.fsdecode(value)
    content = _load(path)
    if not isinstance(content, Mapping):
        raise UsageError(f"{path}: found {brief(content)}; expected {EXPECTED}")
    return make_splits(content, path)


def _invert(splits: Mapping[str, list[str]], source: str) -> dict[str, str]:
    of: dict[str, str] = {}
    for split, sequences in splits.items():
        for sequence in sequences:
            first = of.setdefault(sequence, split)
            if first != split:
                raise UsageError(f"{source}: sequence {sequence} is in {first!r} and in {split!r}; one split each")
    return of


def _sequences(split: object, sequences: object, source: str) -> list[str]:
    if not isinstance(split, str) or not split or not _is_encodable(split, "strict"):
        raise UsageError(f"{source}: {split!r} is not a split's name; expected {EXPECTED}")
    if not isinstance(sequences, list | tuple):
        raise UsageError(f"{source}: split {split!r} is {brief(sequences)}; expected a list of sequences")
    return [_sequence(split, sequence, source) for sequence in sequences]


def _sequence(split: str, sequence: object, source: str) -> str:
    if isinstance(sequence, int) and not isinstance(sequence, bool) and 0 <= sequence <= MAX_SEQUENCE:
        return f"{sequence:02d}"
    if isinstance(sequence, str) and sequence and "/" not in sequence and _is_encodable(sequence, "surrogateescape"):
        return sequence
    raise UsageError(
        f"{source}: {brief(sequence)} in split {split!r} is not a sequence; expected a folder's name or number"
    )


def _is_encodable(text: str, errors: str) -> bool:
    """Whether text can be written: JSON can spell half a character (a lone surrogate), which no file can hold."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def _load(path: str) -> object:
    try:
        return read_content(path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror or error}; expected a file with {EXPECTED}"
        ) from error
    except ContentError as error:
        raise UsageError(f"{path}: {error}; expected {EXPECTED}") from error

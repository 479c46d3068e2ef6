"""What folders hold, told by their listings alone: no file is opened, and only links are asked for more."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path

from fastload.oserrors import raise_if_exhausted
from fastload.regular import read_regular
from fastload.schema import Problem


@dataclass(frozen=True)
class Numbered:
    """Files of one kind in one folder.

    Attributes:
        by_key: scan number (the stem itself where it is no number) -> file name, sorted by file name.
        clashes: the numbers that several files share (`000042.bin` and `42.bin`) -> those files; they are not
            in `by_key`.
    """

    by_key: Mapping[int | str, str] = dataclass_field(default_factory=dict)
    clashes: Mapping[int | str, tuple[str, ...]] = dataclass_field(default_factory=dict)

    @functools.cached_property
    def keys(self) -> frozenset[int | str]:
        """All keys, those that clash too."""
        return frozenset(self.by_key) | frozenset(self.clashes)

    @functools.cached_property
    def numbers(self) -> frozenset[int]:
        """All keys that are scan numbers."""
        return frozenset(key for key in self.keys if isinstance(key, int))

    @functools.cached_property
    def unnumbered(self) -> list[str]:
        """File names whose stem is no number."""
        return [name for key, name in self.by_key.items() if not isinstance(key, int)]


def list_numbered(folder: str, suffix: str) -> Numbered:
    """What in `folder` ends in `suffix` and is not hidden. Raises `OSError`.

    A folder of such a name is among it: who opens it finds out, while one passed over would be missed.
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if is_named(entry.name, suffix))
    by_key: dict[int | str, list[str]] = {}
    for name in names:
        by_key.setdefault(key_of(name.removesuffix(suffix)), []).append(name)
    return Numbered(
        {key: found[0] for key, found in by_key.items() if len(found) == 1},
        {key: tuple(found) for key, found in by_key.items() if len(found) > 1},
    )


def key_of(stem: str) -> int | str:
    """The number that a stem of digits means, else the stem."""
    return int(stem) if stem.isascii() and stem.isdigit() else stem


def is_named(name: str, suffix: str) -> bool:
    """Whether a name ends in `suffix` and is not hidden."""
    return name.endswith(suffix) and not name.startswith(".")


def list_folders(folder: str) -> list[str]:
    """Names of the folders in `folder`, sorted; links are followed, those that lead nowhere kept.

    Raises `OSError`, and `ResourceError` where a limit of the machine is in the way.
    """
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))


def is_absent(path: str, error: OSError) -> bool:
    """Whether `error` says that nothing is at `path`. A broken link is something: its data is lost."""
    return isinstance(error, FileNotFoundError) and not Path(path).is_symlink()


def is_there(path: str) -> bool:
    """Whether anything is at `path`, a broken link too. Raises `OSError` where that cannot be told."""
    try:
        Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_text(path: str) -> str | None:
    """The text of a file of numbers, None where there is no such file. Raises `OSError`."""
    try:
        return read_regular(path).decode("utf-8-sig", "replace")
    except OSError as error:
        if is_absent(path, error):
            return None
        raise


def unreadable(path: str, error: OSError, field: str | None = None) -> Problem:
    """The problem that the system's refusal to read a file or folder is.

    Raises:
        ResourceError: a limit of the machine was met, which says nothing of the file.
    """
    raise_if_exhausted(error, path)
    if isinstance(error, FileNotFoundError):
        found, fix = "a link to something that is not there", "fetch or mount what it points to, or remove it"
    else:
        found, fix = f"cannot be read: {error.strerror or error}", "check its type and its permissions"
    return Problem(path, None, field, found, "", fix, "unreadable")


def first_few(names: list[str], limit: int = 3) -> str:
    """The first names, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError as error:
        raise_if_exhausted(error, entry.path)
        return True  # nobody can tell: who looks into it will say why

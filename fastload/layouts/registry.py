"""The layouts by name: the built-in ones, and those that other packages bring as entry points."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from fastload.errors import ResourceError, UsageError
from fastload.layouts.base import Layout
from fastload.layouts.semantickitti import SemanticKitti
from fastload.oserrors import raise_if_exhausted

ENTRY_POINTS = "fastload.layouts"
MAX_NEIGHBOURS = 100
"""How many folders beside and below are looked into for a hint."""

BUILT_IN: dict[str, Layout] = {layout.name: layout for layout in (SemanticKitti(),)}


def get_layout(name: str) -> Layout:
    """The layout of this name. Raises `UsageError` for an unknown one and for one that cannot be loaded."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    points = _third_party()
    if name not in points:
        raise UsageError(f"layout {name!r} is unknown; expected one of {', '.join(layout_names())}")
    return _load(points[name])


def layout_names() -> list[str]:
    """The names of all layouts, sorted; nothing is loaded."""
    return sorted({*BUILT_IN, *_third_party()})


def detect_layout(root: Path) -> Layout:
    """The one layout that `root` looks like; those of other packages are asked where no built-in one fits.

    Raises `UsageError` where none or several fit, saying what was looked for.
    """
    _check_folder(root)
    fitting = [layout for layout in BUILT_IN.values() if layout.detect(root)]
    broken: list[str] = []
    if not fitting:
        fitting = [layout for layout in _loadable(broken) if _detects(layout, root, broken)]
    if len(fitting) > 1:
        names = " and ".join(layout.name for layout in fitting)
        raise UsageError(f"{root}: looks like {names}; name the layout")
    if not fitting:
        raise UsageError(f"{root}: {_nothing_fits(root, broken)}")
    return fitting[0]


def _check_folder(root: Path) -> None:
    try:
        mode = root.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"{root}: no such folder") from None
    except OSError as error:
        raise UsageError(f"{root}: cannot be looked into ({error.strerror or error})") from error
    if not stat.S_ISDIR(mode):
        raise UsageError(f"{root}: is not a folder")


def _nothing_fits(root: Path, broken: list[str]) -> str:
    looked_for = "; ".join(f"{name}: {getattr(layout, 'looks_for', '...')}" for name, layout in BUILT_IN.items())
    text = f"fits no layout; looked for {looked_for}"
    for neighbour in _neighbours(root):
        for layout in BUILT_IN.values():
            if layout.detect(neighbour):
                return f"{text}; {neighbour} looks like {layout.name}: give that folder"
    text += "; name the layout, or give the folder that holds these"
    return text + "".join(f"; {reason}" for reason in broken)


def _neighbours(root: Path) -> Iterator[Path]:
    """The folder above and some below: the root is often given one level too high or too low."""
    yield root.absolute().parent
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_NEIGHBOURS), strict=False) if entry.is_dir()]
    except OSError:
        return
    for name in sorted(names):
        yield root / name


def _third_party() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in BUILT_IN}


def _loadable(broken: list[str]) -> Iterator[Layout]:
    """The layouts of other packages; why one cannot be loaded is added to `broken`."""
    for point in _third_party().values():
        try:
            yield _load(point)
        except UsageError as error:
            broken.append(str(error))


def _load(point: EntryPoint) -> Layout:
    try:
        found = point.load()
        layout = found() if isinstance(found, type) else found
    except Exception as error:  # another package's code may raise anything
        raise UsageError(f"layout {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
    if not isinstance(layout, Layout):
        members = "name, schema, detect, samples, attachments"
        raise UsageError(f"layout {point.name!r} ({point.value}) is no layout; expected an object with {members}")
    return layout


def _detects(layout: Layout, root: Path, broken: list[str]) -> bool:
    try:
        return layout.detect(root)
    except ResourceError:
        raise
    except Exception as error:  # another package's code may raise anything
        if isinstance(error, OSError):
            raise_if_exhausted(error, root)
        broken.append(f"layout {layout.name!r} failed to look: {error!r}")
        return False

"""`fastload.repair`: manifest, index and names of a packed dataset, rebuilt from its shards alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fastload.errors import CorruptError, DatasetNotFoundError
from fastload.packing.execute import ProgressCallback
from fastload.packing.repairing.diagnose import Diagnosis, diagnose
from fastload.packing.repairing.mend import Mended, mend
from fastload.packing.report import RepairReport
from fastload.schema import Problem
from fastload.store import fs
from fastload.store.manifest import MANIFEST_FILE, Manifest, read_manifest


def repair(
    root: str | Path,
    *,
    drop_damaged: bool = False,
    dry_run: bool = False,
    progress: ProgressCallback | None = None,
) -> RepairReport:
    """Rebuild what can be rebuilt of a packed dataset: manifest, index and names, and the pages of its shards.

    All of it is made of the shards' records, which describe themselves. Nothing is deleted: a file that is
    replaced stays beside the new one, with `.damaged` at the end of its name. What is sound is left as it is.

    Args:
        root: the dataset's folder.
        drop_damaged: leave out samples and attachments that are damaged or lost. Without it they stay in the
            dataset where their names are known, and reading one raises `CorruptError`; where they are not,
            nothing is written.
        dry_run: only say what would be done.
        progress: called with a `Progress` after each sample.

    Returns:
        What was rebuilt, what was left out, and what is still damaged (`.ok`: nothing).

    Raises:
        DatasetNotFoundError: there are no shards, or those of an unfinished pack.
        VersionError: written in a newer format.
        LockedError: another fastload is writing to the folder.
        DatasetError: the shards do not belong together, or none of the samples is sound.
        ResourceError: the disk is full.
    """
    started = time.monotonic()
    root = Path(root)
    if not root.is_dir():
        read_manifest(root)  # says what is there instead
    with contextlib.nullcontext() if dry_run else fs.lock_folder(root):
        manifest, unfinished = _usable_manifest(root)
        found = diagnose(root, manifest, progress)
        if unfinished is not None and found.problems and not drop_damaged:
            raise unfinished
        done = mend(root, found, drop=drop_damaged, dry_run=dry_run)
        if not dry_run and done.samples:
            fs.remove(fs.temporary(root / MANIFEST_FILE))  # the mark of an unfinished pack: it is finished now
    return _report(root, found, done, drop=drop_damaged, dry_run=dry_run, seconds=time.monotonic() - started)


def _usable_manifest(root: Path) -> tuple[Manifest | None, DatasetNotFoundError | None]:
    """The manifest; where there is none because a pack was not finished, the error that says so."""
    try:
        return read_manifest(root), None
    except DatasetNotFoundError as error:
        return None, error if fs.temporary(root / MANIFEST_FILE).exists() else None
    except CorruptError:
        return None, None


def _report(root: Path, found: Diagnosis, done: Mended, *, drop: bool, dry_run: bool, seconds: float) -> RepairReport:
    problems = () if drop else found.problems
    return RepairReport(
        root=os.fspath(root),
        ok=not problems,
        dry_run=dry_run,
        samples=done.samples,
        shards=done.shards,
        rebuilt=tuple(done.rebuilt),
        set_aside=tuple(done.set_aside),
        dropped=tuple(_dropped(found)) if drop else (),
        problems=problems,
        notes=(*found.notes, *(() if drop else _note_unread(found))),
        seconds=seconds,
    )


def _dropped(found: Diagnosis) -> Iterator[Problem]:
    """What is left out: the problems, and each sample that is lost with its shard."""
    named = {problem.index for problem in found.problems}
    yield from (replace(problem, fix="") for problem in found.problems)
    for case in found.cases:
        for number in case.lost:
            if number not in named:
                text = "left out with its shard"
                name = found.old.name(number)
                yield Problem(None, name, None, text, "", "", kind="lost", shard=case.expected.file, index=number)


def _note_unread(found: Diagnosis) -> Iterator[str]:
    """A file of another size than the manifest says is not read at all: its sound samples are not lost."""
    for case in found.cases:
        shard, entry = case.found, case.expected.current
        if case.loses and shard is not None and entry is not None and shard.nbytes != entry.bytes and case.sound:
            sound = f"{len(case.sound)} of its {len(case.expected.numbers)} samples are sound"
            yield f"{shard.file}: {sound}, and can be read once the others are left out (--drop-damaged)"

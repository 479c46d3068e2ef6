"""What is left of a packed dataset, and what of it is damaged or lost: the findings that repair acts on."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError
from fastload.oserrors import raise_if_exhausted
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.repairing.by_manifest import (
    LEFT_OUT,
    Old,
    agrees,
    cases_by_manifest,
    fits,
    open_old,
    same_kind,
    slots_of,
)
from fastload.packing.repairing.by_shards import cases_by_shards, missing_behind
from fastload.packing.repairing.cases import MAX_MISSING, Case, problems_of
from fastload.packing.repairing.examine import Examined, examine_shard, read_identity
from fastload.schema import Problem
from fastload.store import fs
from fastload.store.identity import Identity, Kind
from fastload.store.manifest import Manifest, ShardEntry
from fastload.store.shard import SHARDS_FOLDER, is_shard_name

_MAX_GAP = 100_000
"""A shard whose number is so much higher than there are shards is not one of them."""


@dataclass(frozen=True)
class Diagnosis:
    """What is left of a dataset.

    Attributes:
        kind: layout, options and schema, and what was changed when it was packed.
        old: manifest, index and names that can be trusted.
        cases: its shards, in order.
        numbers: how many numbers samples have, with those of damaged and lost ones.
        problems: what is damaged or lost, but for what was left out earlier.
        notes: what the user should know.
        is_open_ended: whether nothing undamaged says how much there should be.
    """

    kind: Kind
    old: Old
    cases: tuple[Case, ...]
    numbers: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    is_open_ended: bool


def diagnose(root: Path, manifest: Manifest | None, progress: ProgressCallback | None = None) -> Diagnosis:
    """Read all shards of a dataset.

    Args:
        root: the dataset's folder.
        manifest: its manifest, where there is an undamaged one.
        progress: called with a `Progress` after each sample.

    Raises:
        DatasetNotFoundError: there are no shards.
        DatasetError: they do not belong together, or may not be read.
    """
    files, notes = _shard_files(root)
    identities = _identities(root, files, notes)
    if manifest is not None and not fits(manifest, identities):
        notes.append("dataset.json is that of another dataset than the shards: not used")
        manifest = None
    kind = _kind_of(root, manifest, identities)
    own = _sort_out(root, manifest, kind, identities, notes)
    if not own:
        raise DatasetNotFoundError(f"{root}: none of its shards is there; copy them anew, or pack the dataset again")
    old = open_old(root, manifest)
    found = _examine(root, own, kind, manifest, progress)
    cases = cases_by_manifest(old, found) if manifest is not None else cases_by_shards(root, found)
    _check_counts(root, cases)
    behind = missing_behind(cases) if manifest is None else []
    notes += _note_earlier(manifest)
    problems = [problem for case in cases for problem in problems_of(case, old.name)]
    return Diagnosis(
        kind=kind,
        old=old,
        cases=tuple(cases),
        numbers=manifest.numbers if manifest is not None else cases[-1].expected.numbers.stop,
        problems=(*problems, *behind),
        notes=tuple(notes),
        is_open_ended=bool(behind) or not all(case.expected.certain for case in cases),
    )


def _shard_files(root: Path) -> tuple[list[str], list[str]]:
    """The shards in order of their numbers, and notes on files that lie beside them."""
    folder = root / SHARDS_FOLDER
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    shards = sorted((name for name in names if is_shard_name(name)), key=lambda name: int(Path(name).stem))
    notes = []
    while shards and int(Path(shards[-1]).stem) - len(shards) > _MAX_GAP:
        notes.append(f"{SHARDS_FOLDER}/{shards.pop()}: a number that no shard of so few has: not used")
    others = [name for name in names if not is_shard_name(name) and not name.startswith(fs.TEMP_PREFIX)]
    notes += [f"{SHARDS_FOLDER}/{name}: not named as a shard: not used" for name in others if ".damaged" not in name]
    if not shards:
        raise DatasetNotFoundError(
            f"{root}: no shards ({SHARDS_FOLDER}/00000.lmdb, ...), so there is nothing to rebuild a dataset from; give"
            " the folder that fastload pack wrote"
        )
    return [f"{SHARDS_FOLDER}/{name}" for name in shards], notes


def _identities(root: Path, files: Sequence[str], notes: list[str]) -> dict[str, Identity | None]:
    """What each shard that can be opened says of itself."""
    said = {}
    for file in files:
        try:
            said[file] = read_identity(root, file)
        except CorruptError:
            notes.append(f"{file}: not a regular file: not used")
        except OSError as error:
            raise_if_exhausted(error, root / file)
            if error.errno in (errno.EACCES, errno.EPERM):
                raise DatasetError(
                    f"{root / file}: cannot be opened ({error.strerror}); see to its permissions, then run the command"
                    " again"
                ) from error
            notes.append(f"{file}: cannot be opened ({error.strerror or error}): not used")
    return said


def _kind_of(root: Path, manifest: Manifest | None, identities: Mapping[str, Identity | None]) -> Kind:
    """What the manifest says that the dataset is, else what most of its shards say."""
    if manifest is not None:
        lossy = tuple(text for text in manifest.lossy if not text.startswith(LEFT_OUT))
        return Kind(manifest.layout, manifest.options, manifest.schema, lossy)
    kinds = [identity.kind for identity in identities.values() if identity is not None]
    if not kinds:
        raise DatasetError(
            f"{root}: without a usable dataset.json, and with the info record of each shard damaged, nothing says what"
            " the dataset is; copy dataset.json or a shard anew, or pack the dataset again"
        )
    texts = [json.dumps([kind.layout, kind.options, kind.schema.to_json()]) for kind in kinds]
    return kinds[texts.index(Counter(texts).most_common(1)[0][0])]


def _sort_out(
    root: Path, manifest: Manifest | None, kind: Kind, identities: Mapping[str, Identity | None], notes: list[str]
) -> list[str]:
    """The shards that are the dataset's; a note is added for each of the others."""
    slots = {slot.file: slot for slot in slots_of(manifest)} if manifest is not None else {}
    own = []
    for file, said in identities.items():
        if manifest is not None and file not in slots:
            notes.append(f"{file}: dataset.json does not name it: not used")
        elif said is None or _belongs(said, slots.get(file), manifest, kind):
            own.append(file)
        else:
            if manifest is not None:
                _refuse_renamed(root, manifest, file, said)
            notes.append(f"{file}: says that it is a shard of another dataset: not used")
    return own


def _belongs(said: Identity, slot: ShardEntry | None, manifest: Manifest | None, kind: Kind) -> bool:
    """Whether a shard is the dataset's, as far as what it says of itself can tell."""
    if manifest is None or slot is None:
        return same_kind(said.kind, kind)
    return agrees(manifest, slot, said)


def _refuse_renamed(root: Path, manifest: Manifest, file: str, said: Identity) -> None:
    """A shard under another shard's name is not lost: it has to be renamed."""
    other = next((slot.file for slot in slots_of(manifest) if slot.samples and agrees(manifest, slot, said)), None)
    if other is not None:
        raise DatasetError(
            f"{root}: {file} says that it is {other}, by the samples that it holds: give the shards their right names,"
            " then run the command again"
        )


def _examine(
    root: Path, files: Sequence[str], kind: Kind, manifest: Manifest | None, progress: ProgressCallback | None
) -> dict[str, Examined]:
    total_bytes = sum((root / file).stat().st_size for file in files)
    counter = ProgressCounter("examine", manifest.samples if manifest else 0, total_bytes, progress)
    return {file: examine_shard(root, file, kind.schema, counter.add) for file in files}


def _check_counts(root: Path, cases: Sequence[Case]) -> None:
    for case in cases:
        wanted = len(case.expected.numbers) + len(case.expected.attachments)
        there = len(case.found.places) if case.found is not None else 0
        if wanted - there > MAX_MISSING:
            raise DatasetError(
                f"{root / case.expected.file}: {there:,} records, where {wanted:,} should be: what it or"
                " dataset.json says cannot be right; copy them anew, or pack the dataset again"
            )


def _note_earlier(manifest: Manifest | None) -> list[str]:
    texts = [text for text in manifest.lossy if text.startswith(LEFT_OUT)] if manifest is not None else []
    return [f"{text} (earlier)" for text in texts]

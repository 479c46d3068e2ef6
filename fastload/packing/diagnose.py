"""What is left of a packed dataset, and what of it is damaged or lost: the findings that repair acts on."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError
from fastload.packing.examine import Damaged, Examined, examine_shard, read_identity
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.schema import Problem
from fastload.store.files import BlockEntry, describe_blocks
from fastload.store.identity import Identity, Kind
from fastload.store.index import open_index
from fastload.store.manifest import Manifest, ShardEntry
from fastload.store.names import Names, open_names
from fastload.store.npy import RowFile
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY, DamageError
from fastload.store.shard import SHARDS_FOLDER, is_shard_name, shard_file

GET_BACK = "copy the file anew, or leave out what is lost with drop_damaged (--drop-damaged)"
LEFT_OUT = "damaged or lost, and left out by fastload repair"
"""Begins the manifest's sentence on what a repair left out."""
_KIND_NAMES = ("layout", "options", "schema")


@dataclass(frozen=True)
class Old:
    """Manifest, index and names as they lie there, as far as they can be trusted.

    Attributes:
        manifest: the manifest; None where it is missing, damaged, or not that of the shards.
        index: the index, None where it is not as the manifest says.
        names: the names, None where they are not as the manifest says.
    """

    manifest: Manifest | None = None
    index: RowFile | None = None
    names: Names | None = None

    def name(self, number: int) -> str | None:
        """The name of a sample, where it is known."""
        return self.names[number] if self.names is not None else None


@dataclass(frozen=True)
class Expected:
    """What a shard should hold.

    Attributes:
        file: its path relative to the dataset's folder.
        numbers: the numbers of its samples, ascending.
        attachments: the keys of its attachments.
        entry: what the manifest says of it, where there is one.
        certain: whether that is all; False where nothing undamaged says so.
    """

    file: str
    numbers: Sequence[int]
    attachments: Sequence[int]
    entry: ShardEntry | None = None
    certain: bool = True


@dataclass(frozen=True)
class Case:
    """One shard: what it should hold and what it does; `found` is None where its file is missing.

    Attributes:
        expected: what it should hold.
        found: what it holds.
        vouched: whether the index says that all of its samples' headers are those that were packed.
    """

    expected: Expected
    found: Examined | None
    vouched: bool = False

    @functools.cached_property
    def sound(self) -> list[int]:
        """Numbers of its undamaged samples, ascending."""
        found = self.found
        return [] if found is None else [number for number in self.expected.numbers if found.is_sound(number)]

    @functools.cached_property
    def sound_attachments(self) -> list[int]:
        """Keys of its undamaged attachments, ascending."""
        found = self.found
        return [] if found is None else [key for key in self.expected.attachments if found.is_sound(key)]

    @property
    def is_whole(self) -> bool:
        """Whether all is there that it should hold, undamaged."""
        counts = len(self.sound), len(self.sound_attachments)
        return self.expected.certain and counts == (len(self.expected.numbers), len(self.expected.attachments))

    @property
    def is_as_packed(self) -> bool:
        """Whether the file has the digest that the manifest says."""
        entry = self.expected.entry
        return entry is not None and self.found is not None and self.found.xxh3_128 == entry.xxh3_128


@dataclass(frozen=True)
class Diagnosis:
    """What is left of a dataset.

    Attributes:
        kind: layout, options and schema, and what was changed when it was packed.
        old: manifest, index and names that can be trusted.
        cases: its shards, in order.
        numbers: how many numbers samples have, with those of damaged and lost ones.
        problems: what is damaged or lost.
        notes: what the user should know.
        is_open_ended: whether nothing undamaged says how many samples there should be.
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
        DatasetError: they do not belong together.
    """
    identities = {file: read_identity(root, file) for file in _shard_files(root)}
    notes: list[str] = []
    left_out = [text for text in manifest.lossy if text.startswith(LEFT_OUT)] if manifest is not None else []
    if left_out:
        manifest = None  # what an earlier repair left out may be there again: the shards alone tell
        notes += [f"an earlier repair left things out, which count as lost here ({text})" for text in left_out]
    if manifest is not None and not _fits(manifest, identities):
        notes.append("dataset.json is that of another dataset than the shards: not used")
        manifest = None
    kind = _kind_of(root, manifest, identities)
    own, strange = _sort_out(manifest, kind, identities)
    notes += strange
    if not own:
        raise DatasetNotFoundError(f"{root}: none of its shards is there; copy them anew, or pack the dataset again")
    old = _open_old(root, manifest)
    found = _examine(root, own, kind, manifest, progress)
    if manifest is not None:
        cases, numbers = _cases_by_manifest(manifest, old, found), manifest.samples
    else:
        cases, numbers = _cases_by_shards(root, found)
    problems = [problem for case in cases for problem in _problems_of(case, old)]
    further = _further_problems(cases, numbers) if manifest is None else []
    open_ended = bool(further) or not all(case.expected.certain for case in cases)
    return Diagnosis(kind, old, tuple(cases), numbers, (*problems, *further), tuple(notes), open_ended)


def _shard_files(root: Path) -> list[str]:
    folder = root / SHARDS_FOLDER
    names = [path.name for path in folder.iterdir() if is_shard_name(path.name)] if folder.is_dir() else []
    if not names:
        raise DatasetNotFoundError(
            f"{root}: no shards ({SHARDS_FOLDER}/00000.lmdb, ...), so there is nothing to rebuild a dataset from; give"
            " the folder that fastload pack wrote"
        )
    return [f"{SHARDS_FOLDER}/{name}" for name in sorted(names, key=lambda name: int(Path(name).stem))]


def _fits(manifest: Manifest, identities: Mapping[str, Identity | None]) -> bool:
    """Whether a manifest is that of these shards: more of them say the same of themselves than not."""
    entries = {entry.file: entry for entry in manifest.shards}
    said = [(entries.get(file), identity) for file, identity in identities.items() if identity is not None]
    agreeing = sum(entry is not None and _agrees(manifest, entry, identity) for entry, identity in said)
    return not said or agreeing > len(said) - agreeing


def _agrees(manifest: Manifest, entry: ShardEntry, said: Identity) -> bool:
    counts = entry.first, entry.samples, entry.attachments
    more_than_all = said.more and entry == manifest.shards[-1]
    same = counts == (said.first, said.samples, said.attachments) and not more_than_all
    return same and _same_kind(said.kind, manifest)


def _same_kind(one: Kind, other: Kind | Manifest) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _KIND_NAMES)


def _kind_of(root: Path, manifest: Manifest | None, identities: Mapping[str, Identity | None]) -> Kind:
    """What the manifest says that the dataset is, else what most of its shards say."""
    if manifest is not None:
        return Kind(manifest.layout, manifest.options, manifest.schema, manifest.lossy)
    kinds = [identity.kind for identity in identities.values() if identity is not None]
    if not kinds:
        raise DatasetError(
            f"{root}: without a usable dataset.json, and with the info record of each shard damaged, nothing says what"
            " the dataset is; copy dataset.json or a shard anew, or pack the dataset again"
        )
    texts = [json.dumps([kind.layout, kind.options, kind.schema.to_json()], default=repr) for kind in kinds]
    return kinds[texts.index(Counter(texts).most_common(1)[0][0])]


def _sort_out(
    manifest: Manifest | None, kind: Kind, identities: Mapping[str, Identity | None]
) -> tuple[list[str], list[str]]:
    """The shards that are the dataset's, and a note for each of the others."""
    entries = {entry.file: entry for entry in manifest.shards} if manifest is not None else {}
    own, notes = [], []
    for file, said in identities.items():
        if manifest is not None and file not in entries:
            notes.append(f"{file}: dataset.json does not name it: not used")
        elif said is not None and not (
            _agrees(manifest, entries[file], said) if manifest is not None else _same_kind(said.kind, kind)
        ):
            notes.append(f"{file}: says that it is a shard of another dataset: not used")
        else:
            own.append(file)
    return own, notes


def _open_old(root: Path, manifest: Manifest | None) -> Old:
    if manifest is None:
        return Old()
    index, *names = (_is_as_written(root, entry) for entry in (manifest.index, *manifest.names))
    return Old(
        manifest,
        open_index(root, manifest.schema, manifest.samples, manifest.index) if index else None,
        open_names(root, manifest.samples, *manifest.names) if all(names) else None,
    )


def _is_as_written(root: Path, entry: BlockEntry) -> bool:
    try:
        return describe_blocks(root, entry.file) == entry
    except (FileNotFoundError, CorruptError):
        return False


def _examine(
    root: Path, files: Sequence[str], kind: Kind, manifest: Manifest | None, progress: ProgressCallback | None
) -> dict[str, Examined]:
    total_bytes = sum((root / file).stat().st_size for file in files)
    counter = ProgressCounter("examine", manifest.samples if manifest else 0, total_bytes, progress)
    return {file: examine_shard(root, file, kind.schema, counter.add) for file in files}


def _cases_by_manifest(manifest: Manifest, old: Old, found: Mapping[str, Examined]) -> list[Case]:
    cases = []
    attachment = ATTACHMENT_BIT
    for entry in manifest.shards:
        numbers = range(entry.first, entry.first + entry.samples)
        expected = Expected(entry.file, numbers, range(attachment, attachment + entry.attachments), entry)
        attachment += entry.attachments
        shard = found.get(entry.file)
        vouched = shard is not None and old.index is not None and _compare(shard, expected, old.index)
        cases.append(Case(expected, shard, vouched))
    return cases


def _compare(shard: Examined, expected: Expected, index: RowFile) -> bool:
    """Hold the headers of a shard's samples against the index: a record of another dataset is not that sample's.

    Gives whether the index knows all of them.
    """
    column = list(index.dtype.names or ()).index("header_xxh3")
    for number in expected.numbers:
        sample = shard.samples.get(number)
        if sample is not None and sample.row[column] != int(index[number]["header_xxh3"]):
            error = DamageError("a record of another dataset", "the one by index.npy", kind="index")
            shard.damage[number] = Damaged(None, (error,))
            del shard.samples[number], shard.places[number]
    return len(expected.numbers) > 0


def _cases_by_shards(root: Path, found: Mapping[str, Examined]) -> tuple[list[Case], int]:
    """The shards as they themselves say, with the missing ones between them, and how many samples there are."""
    cases: list[Case] = []
    end, attachment = 0, ATTACHMENT_BIT
    for file, shard in found.items():
        if any(not case.expected.certain for case in cases):
            attachment = min(filter(_is_attachment, shard.attachments), default=attachment)
        expected = _expected_of(shard, end, attachment)
        start = expected.numbers[0] if expected.numbers else end
        if start < end:
            raise DatasetError(
                f"{root / file}: holds samples from number {start} on, and so does {cases[-1].expected.file}: shards of"
                " two datasets? take out those that do not belong, and run the command again"
            )
        missing = [shard_file(lost) for lost in range(len(cases), int(Path(file).stem))]
        gap: Sequence[int] = range(end, start)
        for name in missing:
            cases.append(Case(Expected(name, gap, (), None, False), None))
            gap = ()
        if gap:
            expected = replace(expected, numbers=[*gap, *expected.numbers])
        cases.append(Case(expected, shard))
        end = expected.numbers[-1] + 1 if expected.numbers else end
        attachment = expected.attachments[-1] + 1 if expected.attachments else attachment
    _check_links(root, cases)
    _refuse_twins(root, cases)
    return cases, end


def _expected_of(shard: Examined, end: int, attachment: int) -> Expected:
    """What a shard should hold as it says itself, else as its pages say, else what is found.

    Args:
        shard: what it holds.
        end: the number after those of the shards before it.
        attachment: the key after those of the attachments before it.
    """
    if shard.identity is not None:
        said = shard.identity
        attachments = range(attachment, attachment + said.attachments)
        return Expected(shard.file, range(said.first, said.first + said.samples), attachments)
    keys = {*shard.places, *(shard.damage if shard.pages_damage is None else ())}
    samples = sorted(key for key in keys if end <= key < ATTACHMENT_BIT)
    return Expected(shard.file, samples, sorted(filter(_is_attachment, keys)), None, shard.pages_damage is None)


def _is_attachment(key: int) -> bool:
    return bool(key & ATTACHMENT_BIT) and key != INFO_KEY


def _check_links(root: Path, cases: Sequence[Case]) -> None:
    """See that each shard follows the one that it says it follows."""
    for before, case in itertools.pairwise(cases):
        said = case.found.identity if case.found is not None else None
        earlier, numbers = before.found, before.expected.numbers
        last = earlier.samples.get(numbers[-1]) if earlier is not None and numbers else None
        if said is not None and said.samples and last is not None and last.name != said.before:
            told, found = (name.decode("utf-8", "surrogateescape") for name in (said.before, last.name))
            raise DatasetError(
                f"{root}: {case.expected.file} says that it follows a sample {told!r}; {before.expected.file} ends with"
                f" {found!r}: shards of two datasets? take out those that do not belong, and run the command again"
            )


def _refuse_twins(root: Path, cases: Sequence[Case]) -> None:
    """See that no two shards hold samples of one name, as those of two datasets would."""
    holders: dict[bytes, str] = {}
    for case in cases:
        for sample in case.found.samples.values() if case.found is not None else ():
            earlier = holders.setdefault(sample.name, case.expected.file)
            if earlier != case.expected.file:
                name = sample.name.decode("utf-8", "surrogateescape")
                raise DatasetError(
                    f"{root}: {earlier} and {case.expected.file} both hold a sample {name}: shards of two datasets?"
                    " take out those that do not belong, and run the command again"
                )


def _problems_of(case: Case, old: Old) -> Iterator[Problem]:
    """What is damaged or lost of a shard."""
    expected, found = case.expected, case.found
    if found is None:
        samples = expected.numbers
        wanted = f"samples {samples[0]} to {samples[-1]}" if samples else "a shard"
        yield Problem(None, None, None, "no usable file", wanted, GET_BACK, kind="missing", shard=expected.file)
        return
    for number in expected.numbers:
        if not found.is_sound(number):
            yield from _sample_problems(found, number, old)
    for key in expected.attachments:
        if not found.is_sound(key):
            yield from _attachment_problems(found, key)
    if not expected.certain:
        lost = DamageError("its pages and its info record are damaged", "one of them, to tell how many samples it has",
                           kind="pages")  # fmt: skip
        yield _problem(found, lost)


def _sample_problems(found: Examined, number: int, old: Old) -> Iterator[Problem]:
    lost = DamageError(f"nothing of sample number {number}", "its record", kind="lost")
    name, errors = found.damage.get(number, Damaged(None, (lost,)))
    for error in errors:
        yield _problem(found, error, name if name is not None else old.name(number), number)


def _attachment_problems(found: Examined, key: int) -> Iterator[Problem]:
    lost = DamageError("nothing of it", "its record", kind="lost")
    name, errors = found.damage.get(key, Damaged(None, (lost,)))
    for error in errors:
        what = f"attachment {name if name is not None else key & ~ATTACHMENT_BIT}: {error.found}"
        yield _problem(found, DamageError(what, error.expected, kind=error.kind))


def _problem(found: Examined, error: DamageError, sample: str | None = None, index: int | None = None) -> Problem:
    return Problem(
        None, sample, error.field, error.found, error.expected, GET_BACK, kind=error.kind, shard=found.file, index=index
    )


def _further_problems(cases: Sequence[Case], numbers: int) -> list[Problem]:
    """What the last shard says of others behind it."""
    last = cases[-1].found
    if last is None or (last.identity is not None and not last.identity.more):
        return []
    said = "another shard follows it" if last.identity is not None else "nothing tells whether another follows it"
    error = DamageError(
        f"the last shard that is there (samples up to {numbers - 1}), but {said}", "all", kind="missing"
    )
    return [_problem(last, error)]

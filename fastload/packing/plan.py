"""The plan: which samples go into which shard, in which order, fixed before the first byte is written."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastload.layouts.base import Layout, Note, SourceSample
from fastload.oserrors import raise_if_exhausted
from fastload.packing.files import file_size
from fastload.packing.source import Measured, files_of, measure
from fastload.schema import Problem, Schema
from fastload.store.identity import Kind
from fastload.store.record import ALIGNMENT, ATTACHMENT_BIT, MAX_RECORD_BYTES, PREFIX_BYTES
from fastload.units import portable_name

Found = TypeVar("Found")
_HEADER_ESTIMATE_BYTES = 1024
"""What prefix, header and padding of a record take, about; only the cutting into shards hangs on it."""
_MAX_TWINS = 10
MAX_RECORD_PAYLOAD = MAX_RECORD_BYTES - (1 << 20)


@dataclass(frozen=True)
class PlannedAttachment:
    """An attachment: its key in the shard, its path in the source (as `os` spells it here) and its size."""

    key: int
    path: str
    nbytes: int

    @property
    def name(self) -> str:
        """Its name in the dataset: its path, the same under every locale."""
        return portable_name(self.path)


@dataclass(frozen=True)
class PlannedShard:
    """One shard to write: an independent unit.

    Attributes:
        number: its number, which fixes its file's name.
        first: number of its first sample.
        samples: its samples, in order.
        attachments: its attachments, in order.
    """

    number: int
    first: int
    samples: tuple[Measured, ...]
    attachments: tuple[PlannedAttachment, ...] = ()

    def record_bytes(self) -> Iterator[int]:
        """About how large each record will be."""
        for sample in self.samples:
            yield estimate_record(sample.payload_bytes)
        for attachment in self.attachments:
            yield estimate_record(attachment.nbytes)
        yield _HEADER_ESTIMATE_BYTES * 16


@dataclass(frozen=True)
class Plan:
    """What will be packed, and what was found on the way.

    Attributes:
        source: the source's root.
        layout: the layout's name.
        options: the layout's options that the manifest keeps.
        schema: the fields of the samples.
        shards: the shards to write.
        splits: for each split, in order, its [start, stop) range of sample numbers.
        source_bytes: size of all files that will be packed.
        problems: files and samples that cannot be packed.
        notes: what the user should know.
        ignored: files that are neither sample nor attachment.
    """

    source: Path
    layout: str
    options: Mapping[str, Any]
    schema: Schema
    shards: tuple[PlannedShard, ...]
    splits: Mapping[str, tuple[int, int]]
    source_bytes: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """What all shards of the dataset have in common."""
        return Kind(self.layout, self.options, self.schema)

    @property
    def samples(self) -> int:
        """How many samples will be packed."""
        return sum(len(shard.samples) for shard in self.shards)

    @property
    def least_bytes(self) -> int:
        """What the shards will take at least: the fields and attachments alone."""
        samples = sum(sample.payload_bytes for shard in self.shards for sample in shard.samples)
        return samples + sum(attachment.nbytes for shard in self.shards for attachment in shard.attachments)


@dataclass(frozen=True)
class Listing:
    """What a layout found in the source, measured: the material of a plan."""

    samples: tuple[Measured, ...]
    attachments: tuple[PlannedAttachment, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]


def estimate_record(payload_bytes: int) -> int:
    """About how large a record with this payload is."""
    return PREFIX_BYTES + _HEADER_ESTIMATE_BYTES + payload_bytes + ALIGNMENT


def list_source(source: Path, layout: Layout, options: Mapping[str, Any], leave_out: Path) -> Listing:
    """Ask the layout for all samples and attachments, and look at every file's size.

    Args:
        source: the source's root.
        layout: the layout to read it with.
        options: the layout's options.
        leave_out: the output, whose files are not the source's even where it lies inside it.

    Raises:
        ResourceError: a limit of the machine was met.
    """
    samples: list[Measured] = []
    problems: list[Problem] = []
    notes: list[str] = []
    known: set[str] = set()
    names: dict[str, SourceSample] = {}
    for found in _found_by(lambda: layout.samples(source, **options), source):
        if isinstance(found, Problem):
            problems.append(found)
        elif isinstance(found, Note):
            notes.append(str(found))
        else:
            known.update(files_of(found))
            earlier = names.setdefault(found.name, found)
            if earlier is not found:
                problems.append(_same_name(earlier, found))
                continue
            measured = _measure(source, layout.schema, found)
            if isinstance(measured, Measured):
                samples.append(measured)
            else:
                problems += measured
    attachments, bad = _list_attachments(source, layout)
    named = {problem.path for problem in problems}
    problems += [problem for problem in bad if problem.path not in named]
    known.update(attachment.path for attachment in attachments)
    known.update(problem.path for problem in problems if problem.path)
    refused: list[OSError] = []
    ignored = tuple(sorted(set(walk_files(source, leave_out, refused.append)) - known))
    notes += (note for error in refused if (note := _unlisted(source, error, known)))
    notes += _note_twins(names)
    samples.sort(key=lambda item: (_name_bytes(item.sample.split), _name_bytes(item.sample.name)))
    return Listing(tuple(samples), attachments, tuple(problems), tuple(notes), ignored)


def make_plan(source: Path, layout: Layout, options: Mapping[str, Any], listing: Listing, shard_bytes: int) -> Plan:
    """Cut the samples, in order, into shards of about `shard_bytes`; attachments get shards of their own.

    They are apart so that neither the number of attachments nor their size moves a sample's shard.
    """
    shards: list[PlannedShard] = []
    first = 0
    for group in _cut(listing.samples, [estimate_record(s.payload_bytes) for s in listing.samples], shard_bytes):
        shards.append(PlannedShard(len(shards), first, tuple(group)))
        first += len(group)
    sizes = [estimate_record(attachment.nbytes) for attachment in listing.attachments]
    for part in _cut(listing.attachments, sizes, shard_bytes):
        shards.append(PlannedShard(len(shards), first, (), tuple(part)))
    files = sum(sum(sample.sizes.values()) for sample in listing.samples)
    return Plan(
        source=source,
        layout=layout.name,
        options=options,
        schema=layout.schema,
        shards=tuple(shards),
        splits=_splits(listing.samples),
        source_bytes=files + sum(attachment.nbytes for attachment in listing.attachments),
        problems=listing.problems,
        notes=listing.notes,
        ignored=listing.ignored,
    )


def walk_files(root: Path, leave_out: Path, refused: Callable[[OSError], None]) -> Iterator[str]:
    """All files below `root`, relative to it, but those below `leave_out`; links to folders once each.

    Args:
        root: where to look.
        leave_out: a folder that is passed over.
        refused: called with the error for each folder that cannot be looked into.
    """
    top = os.fspath(root)
    skip = os.path.realpath(leave_out)
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(top, onerror=refused, followlinks=True):
        try:
            status = Path(folder).stat()
        except OSError as error:
            folders.clear()
            refused(error)
            continue
        if (status.st_dev, status.st_ino) in seen or os.path.realpath(folder) == skip:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        prefix = os.path.relpath(folder, top)
        for name in files:
            yield name if prefix == "." else f"{prefix}/{name}"


def _found_by(look: Callable[[], Iterable[Found]], source: Path) -> Iterator[Found | Problem]:
    """What a layout finds, and at its end a problem where the system did not let it look further."""
    try:
        yield from look()
    except OSError as error:
        path = _path_of(error, source) or os.fspath(source)
        raise_if_exhausted(error, path)
        found = f"cannot be looked into ({error.strerror or error})"
        yield Problem(path, None, None, found, "", "see that it can be read, then pack again", kind="unreadable")


def _path_of(error: OSError, source: Path) -> str | None:
    """The path that an error of the system names, relative to the source where it lies in it."""
    if not isinstance(error.filename, (str, bytes)):
        return None
    path = os.fsdecode(error.filename)
    inside = os.path.relpath(path, source)
    return path if inside == ".." or inside.startswith("../") else inside


def _unlisted(source: Path, error: OSError, known: Set[str]) -> str | None:
    """What to say of a folder whose files could not be listed; nothing where that is said already."""
    path = _path_of(error, source)
    raise_if_exhausted(error, path or source)
    if path is None or isinstance(error, FileNotFoundError):
        return None
    if not known.isdisjoint([path, *map(str, PurePosixPath(path).parents)]):
        return None
    prefix = "" if path == "." else f"{path}/"
    packed = any(name.startswith(prefix) for name in known)
    lost = "files in it that were not asked for are not named" if packed else "its files are not packed"
    where = os.fspath(source) if path == "." else path
    return str(Note(where, f"cannot be listed ({error.strerror or error}): {lost}"))


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _note_twins(names: Iterable[str]) -> list[str]:
    """A note for each pair of names that a system may take for one: alike but for case or Unicode form."""
    first: dict[str, str] = {}
    twins = []
    for name in names:
        composed = unicodedata.normalize("NFC", name)
        earlier = first.setdefault(unicodedata.normalize("NFC", composed.casefold()), name)
        if earlier is not name:
            twins.append(f"{earlier} and {name}: names that differ in case or Unicode form alone")
    if not twins:
        return []
    more = len(twins) - _MAX_TWINS
    shown = [*twins[:_MAX_TWINS], *([f"... and {more:,} more such names"] if more > 0 else [])]
    return [*shown, "where a system does not tell such names apart, one file overwrites the other when it is unpacked"]


def _measure(source: Path, schema: Schema, sample: SourceSample) -> Measured | list[Problem]:
    measured = measure(source, schema, sample)
    if isinstance(measured, Measured) and measured.payload_bytes > MAX_RECORD_PAYLOAD:
        found = f"{measured.payload_bytes:,} bytes"
        limit = f"at most {MAX_RECORD_PAYLOAD:,} bytes a sample"
        return [Problem(None, sample.name, None, found, limit, "cut it into several samples", kind="size")]
    return measured


def _same_name(first: SourceSample, second: SourceSample) -> Problem:
    paths = [next(iter(files_of(sample)), None) for sample in (first, second)]
    return Problem(
        paths[1], second.name, None, f"a second sample of this name (the first: {paths[0]})", "different names",
        "rename one of them", kind="duplicate",
    )  # fmt: skip


def _list_attachments(source: Path, layout: Layout) -> tuple[tuple[PlannedAttachment, ...], list[Problem]]:
    found = list(_found_by(lambda: layout.attachments(source), source))
    problems = [item for item in found if isinstance(item, Problem)]
    attachments: list[PlannedAttachment] = []
    for path in sorted((item for item in found if not isinstance(item, Problem)), key=os.fsencode):
        size = file_size(source, path, None)
        if isinstance(size, Problem):
            problems.append(size)
        elif size > MAX_RECORD_PAYLOAD:
            limit = f"at most {MAX_RECORD_PAYLOAD:,} bytes an attachment"
            problems.append(Problem(path, None, None, f"{size:,} bytes", limit, "cut it into parts", kind="size"))
        else:
            attachments.append(PlannedAttachment(ATTACHMENT_BIT | len(attachments), path, size))
    return tuple(attachments), problems


def _cut(items: Sequence[Any], sizes: Iterable[int], limit: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _splits(samples: Sequence[Measured]) -> dict[str, tuple[int, int]]:
    splits: dict[str, tuple[int, int]] = {}
    for number, measured in enumerate(samples):
        start, _ = splits.get(measured.sample.split, (number, number))
        splits[measured.sample.split] = (start, number + 1)
    return splits

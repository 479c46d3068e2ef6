"""`fastload.verify`: everything that can be wrong with a packed dataset, by plain reads.

Nothing is mapped and LMDB's code is not run, so no damage can end the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError, VersionError
from fastload.formats.registry import FORMATS
from fastload.oserrors import raise_if_exhausted
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.report import VerifyReport
from fastload.packing.unpack import is_safe_path
from fastload.schema import Problem
from fastload.store import pages
from fastload.store.files import BlockEntry, FileEntry, OpenFile, describe_blocks, read_at
from fastload.store.index import make_row, open_index
from fastload.store.manifest import MANIFEST_FILE, Manifest, ShardEntry, manifest_bytes, read_manifest
from fastload.store.names import Names, open_names
from fastload.store.npy import RowFile
from fastload.store.record import (
    ATTACHMENT_BIT,
    INFO_KEY,
    KEY_BYTES,
    DamageError,
    Header,
    Prefix,
)
from fastload.store.scan import check_contents, digest_file, read_head

_COPY_ANEW = "copy the file anew, or pack the dataset again"


@dataclass
class _Run:
    """What one verification knows and has found so far."""

    root: Path
    manifest: Manifest
    quick: bool
    index: RowFile | None = None
    names: Names | None = None
    problems: list[Problem] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0
    points: int = 0
    source_bytes: int = 0
    present: dict[str, int] = field(default_factory=dict)


def verify(root: str | Path, *, quick: bool = False, progress: ProgressCallback | None = None) -> VerifyReport:
    """Check a packed dataset.

    Args:
        root: the dataset's folder.
        quick: look at sizes, index, names and record headers only; else at every checksum.
        progress: called with a `Progress` after each sample.

    Returns:
        `.ok`, and one `Problem` for each thing that is wrong, with shard, sample and field where they are
        known. Damage is never raised.

    Raises:
        DatasetNotFoundError: the folder does not exist.
        VersionError: written in a newer format, about which nothing can be said.
    """
    started = time.monotonic()
    root = Path(root)
    try:
        manifest = read_manifest(root)
    except VersionError:
        raise
    except DatasetError as error:
        if isinstance(error, DatasetNotFoundError) and not root.is_dir():
            raise
        problem = Problem(None, None, None, str(error), "", "", kind="manifest")
        return VerifyReport(os.fspath(root), False, quick, 0, 0, 0, time.monotonic() - started, (problem,))
    run = _Run(root, manifest, quick)
    _check_spelling(run)
    _check_side_files(run)
    counter = ProgressCounter("verify", manifest.samples, manifest.bytes, progress)
    for number in range(len(manifest.shards)):
        _check_shard(run, number, counter)
    if not run.problems:
        _check_totals(run)
    return VerifyReport(
        root=os.fspath(root),
        ok=not run.problems,
        quick=quick,
        samples=run.samples,
        shards=len(manifest.shards),
        bytes=run.bytes,
        seconds=time.monotonic() - started,
        problems=tuple(run.problems),
    )


def _check_spelling(run: _Run) -> None:
    """See that the manifest is the file that was written, not another that means the same."""
    data = manifest_bytes(run.manifest)
    file = _open(run, FileEntry(MANIFEST_FILE, len(data), ""))
    if isinstance(file, Problem):
        run.problems.append(file)
    elif read_at(file.fd, file.size, 0) != data:
        problem = _problem(MANIFEST_FILE, "manifest", "another spelling of what was written", "the file as written")
        run.problems.append(replace(problem, fix="write it anew with fastload repair"))


def _check_side_files(run: _Run) -> None:
    """Index and names: sizes, digests and form; they are used further on only when they are right."""
    manifest = run.manifest
    sound = [_check_digest(run, entry) for entry in (manifest.index, *manifest.names)]
    try:
        if sound[0]:
            run.index = open_index(run.root, manifest.schema, manifest.numbers, manifest.index)
        if all(sound[1:]):
            run.names = open_names(run.root, manifest.numbers, *manifest.names)
    except CorruptError as error:
        run.problems.append(Problem(None, None, None, str(error), "", "", kind="index", shard=error.shard))


def _check_digest(run: _Run, entry: BlockEntry) -> bool:
    """Whether a file is there with the size and digest that the manifest says; a problem is added if not."""
    problem = _file_problem(run, entry)
    if problem is not None:
        run.problems.append(problem)
    return problem is None


def _file_problem(run: _Run, entry: BlockEntry) -> Problem | None:
    file = _open(run, entry)
    if isinstance(file, Problem):
        return file
    try:
        size = file.size
        if size != entry.bytes:
            return _problem(entry.file, "size", f"{size:,} bytes", f"{entry.bytes:,} bytes as dataset.json says")
        found = describe_blocks(run.root, entry.file)
        run.bytes += size
    except OSError as error:
        return _unreadable(run, entry, error)
    if found != entry:
        digests = f"digest {found.xxh3_128}", f"{entry.xxh3_128} as dataset.json says, and its digests of blocks"
        return _problem(entry.file, "digest", *digests)
    return None


def _check_shard(run: _Run, number: int, counter: ProgressCounter) -> None:
    shard = run.manifest.shards[number]
    file = _open(run, shard)
    if isinstance(file, Problem):
        run.problems.append(file)
        return
    try:
        _check_open_shard(run, number, shard, file.fd, counter)
    except OSError as error:
        run.problems.append(_unreadable(run, shard, error))


def _open(run: _Run, entry: FileEntry) -> OpenFile | Problem:
    try:
        return OpenFile(run.root / entry.file)
    except FileNotFoundError:
        return _problem(entry.file, "missing", "no such file", f"{entry.bytes:,} bytes")
    except CorruptError:
        return _problem(entry.file, "missing", "not a regular file", f"{entry.bytes:,} bytes")
    except OSError as error:
        return _unreadable(run, entry, error)


def _unreadable(run: _Run, entry: FileEntry, error: OSError) -> Problem:
    """The problem that the system's refusal is. Raises `ResourceError` when it is not the file's fault."""
    raise_if_exhausted(error, run.root / entry.file)
    fix = "see to its permissions, and to the disk or network behind it"
    found = error.strerror or str(error)
    return Problem(None, None, None, found, "a readable file", fix, kind="unreadable", shard=entry.file)


def _check_open_shard(run: _Run, number: int, shard: ShardEntry, fd: int, counter: ProgressCounter) -> None:
    before = len(run.problems)
    size = os.fstat(fd).st_size
    if size != shard.bytes:
        wanted = f"{shard.bytes:,} bytes as dataset.json says"
        run.problems.append(_problem(shard.file, "size", f"{size:,} bytes", wanted))
    try:
        entries = list(pages.walk(fd))
    except DamageError as error:
        run.problems.append(_problem(shard.file, error.kind, error.found, error.expected))
        entries = list(_entries_by_index(run, number, shard))
    _check_counts(run, shard, entries, walked=len(run.problems) == before)
    entries = _leave_out_cut(run, shard, entries, size)
    for entry in entries:
        _check_record(run, number, shard, fd, entry)
        if int.from_bytes(entry.key, "big") < ATTACHMENT_BIT:
            counter.add(entry.nbytes)
    if not run.quick and len(run.problems) == before and digest_file(fd) != shard.xxh3_128:
        found = "bytes outside the records that are not as written"
        run.problems.append(_problem(shard.file, "digest", found, f"digest {shard.xxh3_128}"))


def _leave_out_cut(run: _Run, shard: ShardEntry, entries: Sequence[pages.Entry], size: int) -> list[pages.Entry]:
    """The records that lie inside the file; those behind its end are one problem, not one each."""
    inside = [entry for entry in entries if entry.offset + entry.nbytes <= size]
    cut = len(entries) - len(inside)
    if cut:
        key = min(int.from_bytes(entry.key, "big") for entry in entries if entry.offset + entry.nbytes > size)
        found = f"{cut} records that do not end inside the file of {size:,} bytes, from this one on"
        problem = _problem(shard.file, "size", found, f"{shard.bytes:,} bytes as dataset.json says")
        run.problems.append(replace(problem, sample=_known_name(run, key), index=key if key < ATTACHMENT_BIT else None))
    return inside


def _entries_by_index(run: _Run, number: int, shard: ShardEntry) -> Iterator[pages.Entry]:
    """Where the index says that the shard's samples lie: for a shard whose own pages cannot be walked."""
    if run.index is None:
        return
    for sample in run.manifest.numbers_of(shard):
        row = run.index[sample]
        end = int(row["offset"]) + int(row["record_bytes"])
        if int(row["shard"]) == number and end <= shard.bytes:
            yield pages.Entry(sample.to_bytes(KEY_BYTES, "big"), int(row["offset"]), int(row["record_bytes"]))


def _check_counts(run: _Run, shard: ShardEntry, entries: Sequence[pages.Entry], *, walked: bool) -> None:
    if not walked:
        return
    keys = [int.from_bytes(entry.key, "big") for entry in entries]
    samples = [key for key in keys if not key & ATTACHMENT_BIT]
    if samples != list(run.manifest.numbers_of(shard)):
        wanted = f"{shard.samples} samples from {shard.first} on"
        run.problems.append(_problem(shard.file, "pages", f"{len(samples)} samples with other numbers", wanted))
    attachments = len(keys) - len(samples) - (INFO_KEY in keys)
    if attachments != shard.attachments:
        run.problems.append(_problem(shard.file, "pages", f"{attachments} attachments", f"{shard.attachments}"))


def _check_record(run: _Run, number: int, shard: ShardEntry, fd: int, entry: pages.Entry) -> None:
    key = int.from_bytes(entry.key, "big")
    is_sample = not key & ATTACHMENT_BIT
    run.samples += is_sample
    name = _known_name(run, key) if is_sample else None
    try:
        prefix, header = read_head(fd, entry)
        name = header.name or name
        if is_sample:
            _check_row(run, number, entry, prefix, header, key)
            _check_split(run, header, key)
        _check_files(header)
        _count(run, header, key)
        if not run.quick:
            _check_contents(run, shard, fd, entry, prefix, header, key if is_sample else None)
    except DamageError as error:
        run.problems.append(_record_problem(shard, name, key if is_sample else None, error))


def _check_split(run: _Run, header: Header, number: int) -> None:
    """The split that a record names is the one whose range has its number."""
    parts = run.manifest.splits.get(header.split, ())
    if not any(start <= number < stop for start, stop in parts):
        raise DamageError(f"a record of split {header.split!r}", "the split by dataset.json", kind="index")


def _check_files(header: Header) -> None:
    """Source files have paths inside the folder that they are unpacked into, and the parts of their formats."""
    for file in header.files:
        if not is_safe_path(file.path):
            raise DamageError(f"a source file {file.path!r}", "a path that stays inside its folder", kind="path")
        known = FORMATS.get(file.format)
        if known is not None and sorted(file.parts.values()) != sorted(known.parts):
            found = f"{file.path} made of {', '.join(file.parts.values())}"
            raise DamageError(found, f"{', '.join(known.parts)} by its format {file.format}", kind="header")


def _count(run: _Run, header: Header, key: int) -> None:
    """Add a record to what the manifest has sums of."""
    if key == INFO_KEY:
        return
    if key & ATTACHMENT_BIT:
        run.source_bytes += sum(item.nbytes for item in header.fields)
        return
    run.source_bytes += sum(file.nbytes for file in header.files)
    for item in header.fields:
        run.present[item.name] = run.present.get(item.name, 0) + 1
    per_point = {field.name for field in run.manifest.schema if field.per_point}
    run.points += next((item.shape[0] for item in header.fields if item.name in per_point), 0)


def _check_totals(run: _Run) -> None:
    """Hold the manifest's sums against those of the records."""
    manifest = run.manifest
    found = {name: count for name, count in run.present.items() if count}
    wanted = {name: count for name, count in manifest.present.items() if count}
    for what, is_there, said in (
        ("points", run.points, manifest.points),
        ("source bytes", run.source_bytes, manifest.source_bytes),
        ("samples with each field", found, wanted),
    ):
        if is_there != said:
            problem = _problem(MANIFEST_FILE, "manifest", f"{what}: {said}", f"{is_there} by the records")
            run.problems.append(problem)


def _check_row(run: _Run, number: int, entry: pages.Entry, prefix: Prefix, header: Header, key: int) -> None:
    """Hold the record against index and names."""
    row = make_row(run.manifest.schema, number, entry.offset, prefix, header)
    if run.index is not None and key < len(run.index):
        columns = run.index.dtype.names or ()
        for column, found, said in zip(columns, row, run.index[key].item(), strict=True):
            if found != said:
                raise DamageError(f"a record with {column} {found}", f"{said} by the index", kind="index")
    wanted = _known_name(run, key)
    if wanted is not None and header.name != wanted:
        raise DamageError(f"the record of {header.name!r}", f"{wanted!r} by names.bin", kind="names")


def _check_contents(
    run: _Run, shard: ShardEntry, fd: int, entry: pages.Entry, prefix: Prefix, header: Header, index: int | None
) -> None:
    """Every checksum of a record; each damaged field is a problem of its own."""
    run.bytes += entry.nbytes
    for error in check_contents(fd, entry, prefix, header):
        run.problems.append(_record_problem(shard, header.name, index, error))


def _known_name(run: _Run, number: int) -> str | None:
    return run.names[number] if run.names is not None and number < len(run.names) else None


def _record_problem(shard: ShardEntry, name: str | None, index: int | None, error: DamageError) -> Problem:
    return Problem(
        None, name, error.field, error.found, error.expected, _COPY_ANEW, kind=error.kind, shard=shard.file, index=index
    )


def _problem(file: str, kind: str, found: str, expected: str) -> Problem:
    return Problem(None, None, None, found, expected, _COPY_ANEW, kind=kind, shard=file)

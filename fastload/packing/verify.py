"""`fastload.verify`: everything that can be wrong with a packed dataset, by plain reads.

Nothing is mapped and LMDB's code is not run, so no damage can end the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastload.errors import CorruptError, DatasetError, DatasetNotFoundError, VersionError
from fastload.packing.execute import ProgressCallback, ProgressCounter
from fastload.packing.report import VerifyReport
from fastload.schema import Problem
from fastload.store import pages
from fastload.store.index import Rows, make_row, open_index
from fastload.store.manifest import FileEntry, Manifest, ShardEntry, read_manifest
from fastload.store.names import Names, open_names
from fastload.store.record import (
    ATTACHMENT_BIT,
    INFO_KEY,
    PREFIX_BYTES,
    DamageError,
    Header,
    Prefix,
    check_body,
    check_field,
    parse_header,
    parse_prefix,
)
from fastload.store.shard import digest_file

_COPY_ANEW = "copy the file anew, or pack the dataset again"


@dataclass
class _Run:
    """What one verification knows and has found so far."""

    root: Path
    manifest: Manifest
    quick: bool
    index: Rows | None = None
    names: Names | None = None
    problems: list[Problem] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0


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
        problem = Problem("dataset.json", None, None, str(error), "", "", kind="manifest")
        return VerifyReport(os.fspath(root), False, quick, 0, 0, 0, time.monotonic() - started, (problem,))
    run = _Run(root, manifest, quick)
    _check_side_files(run)
    counter = ProgressCounter("verify", manifest.samples, manifest.bytes, progress)
    for number in range(len(manifest.shards)):
        _check_shard(run, number, counter)
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


def _check_side_files(run: _Run) -> None:
    """Index and names: sizes, digests and form; they are used further on only when they are right."""
    manifest = run.manifest
    sound = [_check_digest(run, entry) for entry in (manifest.index, *manifest.names)]
    try:
        if sound[0]:
            run.index = open_index(run.root, manifest.schema, manifest.samples, manifest.index.bytes)
        if all(sound[1:]):
            run.names = open_names(run.root, manifest.samples, manifest.names[0].bytes, manifest.names[1].bytes)
    except CorruptError as error:
        run.problems.append(Problem(error.shard, None, None, str(error), "", "", kind="index"))


def _check_digest(run: _Run, entry: FileEntry) -> bool:
    """Whether a file is there with the size and digest that the manifest says; a problem is added if not."""
    problem = _file_problem(run, entry)
    if problem is not None:
        run.problems.append(problem)
    return problem is None


def _file_problem(run: _Run, entry: FileEntry) -> Problem | None:
    try:
        fd = os.open(run.root / entry.file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return _problem(entry.file, "missing", error.strerror or str(error), f"{entry.bytes:,} bytes")
    try:
        size = os.fstat(fd).st_size
        if size != entry.bytes:
            return _problem(entry.file, "size", f"{size:,} bytes", f"{entry.bytes:,} bytes as dataset.json says")
        digest = digest_file(fd)
        run.bytes += size
    except OSError as error:
        return _problem(entry.file, "unreadable", error.strerror or str(error), "a readable file")
    finally:
        os.close(fd)
    if digest != entry.xxh3_128:
        return _problem(entry.file, "digest", f"digest {digest}", f"{entry.xxh3_128} as dataset.json says")
    return None


def _check_shard(run: _Run, number: int, counter: ProgressCounter) -> None:
    shard = run.manifest.shards[number]
    try:
        fd = os.open(run.root / shard.file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        run.problems.append(_problem(shard.file, kind, error.strerror or str(error), f"{shard.bytes:,} bytes"))
        return
    try:
        _check_open_shard(run, number, shard, fd, counter)
    except OSError as error:
        run.problems.append(_problem(shard.file, "unreadable", error.strerror or str(error), "a readable file"))
    finally:
        os.close(fd)


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
    for entry in entries:
        _check_record(run, number, shard, fd, entry)
        if int.from_bytes(entry.key, "big") < ATTACHMENT_BIT:
            counter.add(entry.nbytes)
    if not run.quick and len(run.problems) == before and digest_file(fd) != shard.xxh3_128:
        found = "bytes outside the records that are not as written"
        run.problems.append(_problem(shard.file, "digest", found, f"digest {shard.xxh3_128}"))


def _entries_by_index(run: _Run, number: int, shard: ShardEntry) -> Iterator[pages.Entry]:
    """Where the index says that the shard's samples lie: for a shard whose own pages cannot be walked."""
    if run.index is None:
        return
    for sample in range(shard.first, shard.first + shard.samples):
        row = run.index[sample]
        if int(row["shard"]) == number:
            yield pages.Entry(sample.to_bytes(8, "big"), int(row["offset"]), int(row["record_bytes"]))


def _check_counts(run: _Run, shard: ShardEntry, entries: Sequence[pages.Entry], *, walked: bool) -> None:
    if not walked:
        return
    keys = [int.from_bytes(entry.key, "big") for entry in entries]
    samples = [key for key in keys if not key & ATTACHMENT_BIT]
    if samples != list(range(shard.first, shard.first + shard.samples)):
        wanted = f"samples {shard.first} to {shard.first + shard.samples - 1}"
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
        prefix, header = _read_head(fd, entry, key)
        name = header.name or name
        if is_sample:
            _check_row(run, number, entry, prefix, header, key)
        if not run.quick:
            _check_contents(run, shard, fd, entry, prefix, header, key if is_sample else None)
    except DamageError as error:
        run.problems.append(_record_problem(shard, name, key if is_sample else None, error))


def _read_head(fd: int, entry: pages.Entry, key: int) -> tuple[Prefix, Header]:
    head = os.pread(fd, PREFIX_BYTES, entry.offset)
    prefix = parse_prefix(head)
    if prefix.number != key or prefix.record_bytes != entry.nbytes or len(entry.key) != 8:
        found = f"the record of number {prefix.number} with {prefix.record_bytes:,} bytes"
        raise DamageError(found, f"number {key} with {entry.nbytes:,} bytes", kind="prefix")
    return prefix, parse_header(prefix, os.pread(fd, prefix.header_bytes, entry.offset + PREFIX_BYTES))


def _check_row(run: _Run, number: int, entry: pages.Entry, prefix: Prefix, header: Header, key: int) -> None:
    """Hold the record against index and names."""
    row = make_row(run.manifest.schema, number, entry.offset, prefix, header)
    if run.index is not None and key < len(run.index) and run.index[key].item() != row:
        raise DamageError(f"a record whose index row is {row}", f"{run.index[key].item()} by the index", kind="index")
    wanted = _known_name(run, key)
    if wanted is not None and header.name != wanted:
        raise DamageError(f"the record of {header.name!r}", f"{wanted!r} by names.bin", kind="names")


def _check_contents(
    run: _Run, shard: ShardEntry, fd: int, entry: pages.Entry, prefix: Prefix, header: Header, index: int | None
) -> None:
    """Every checksum of a record; each damaged field is a problem of its own."""
    start = PREFIX_BYTES + prefix.header_bytes
    body = os.pread(fd, entry.nbytes - start, entry.offset + start)
    run.bytes += entry.nbytes
    if len(body) != entry.nbytes - start:
        raise DamageError(f"{len(body):,} bytes of data", f"{entry.nbytes - start:,}", kind="size")
    for item in header.fields:
        try:
            check_field(item, memoryview(body)[item.offset : item.offset + item.nbytes])
        except DamageError as error:
            run.problems.append(_record_problem(shard, header.name, index, error))
    check_body(header, body, only=())


def _known_name(run: _Run, number: int) -> str | None:
    return run.names[number] if run.names is not None and number < len(run.names) else None


def _record_problem(shard: ShardEntry, name: str | None, index: int | None, error: DamageError) -> Problem:
    return Problem(
        None, name, error.field, error.found, error.expected, _COPY_ANEW, kind=error.kind, shard=shard.file, index=index
    )


def _problem(file: str, kind: str, found: str, expected: str) -> Problem:
    return Problem(None, None, None, found, expected, _COPY_ANEW, kind=kind, shard=file)

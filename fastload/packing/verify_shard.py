"""One shard as `fastload.verify` looks at it: pages, records, and whether they are those that were packed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastload.errors import CorruptError, DatasetError
from fastload.formats.registry import FORMATS
from fastload.oserrors import raise_if_exhausted
from fastload.packing.execute import ProgressCounter
from fastload.packing.unpack import is_safe_path
from fastload.schema import Problem
from fastload.store import pages
from fastload.store.advice import advise, advise_pages
from fastload.store.files import FileEntry, OpenFile
from fastload.store.index import make_row
from fastload.store.manifest import Manifest, ShardEntry
from fastload.store.names import Names
from fastload.store.npy import RowFile
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY, KEY_BYTES, DamageError, Header, Prefix
from fastload.store.scan import check_contents, digest_file, digest_records, read_head
from fastload.units import count_of

_LEAVE_OUT = "copy the shard anew, or leave the sample out with fastload repair --drop-damaged"
"""Of one sample: short, as there may be thousands."""
_SEE_TO_IT = "see to its permissions, and to the disk or network behind it"
_STRANGER, _ABSENT, _UNREADABLE = "stranger", "absent", "unreadable"


@dataclass
class Run:
    """What one verification knows and has found so far.

    Attributes:
        index: the index, None where it is damaged.
        names: the names, None where they are damaged.
        counted: whether all records were found that the manifest's sums are of.
    """

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
    present: Counter[str] = field(default_factory=Counter)
    counted: bool = True


@dataclass
class _Look:
    """What looking at one shard has found so far.

    Attributes:
        faults: what is wrong with the file as a whole.
        record_faults: what is wrong with its records.
        verdicts: for each of its samples that is no whole record of this dataset, how it is not.
        samples: how many samples were looked at.
        heads: the header checksum of each record whose prefix can be read, by key.
        walked: whether its pages lead to as many records of the numbers that there should be.
        first_name: a name that one of its records says.
    """

    number: int
    shard: ShardEntry
    fd: int
    size: int
    faults: list[Problem] = field(default_factory=list)
    record_faults: list[Problem] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    samples: int = 0
    heads: dict[int, int] = field(default_factory=dict)
    walked: bool = True
    headless: bool = False
    first_name: str | None = None

    @property
    def records_xxh3(self) -> str | None:
        """The digest of what the shard holds; None where not all of it could be read."""
        return self.digest_read() if self.walked and not self.headless else None

    def digest_read(self) -> str:
        """The digest of those records whose heads could be read."""
        return digest_records((key, head) for key, head in self.heads.items() if key != INFO_KEY)

    def all_are(self, verdict: str) -> bool:
        """Whether this is so of all its samples, and there are several."""
        return self.samples > 1 and self.verdicts == [verdict] * self.samples


def check_shard(run: Run, number: int, counter: ProgressCounter) -> None:
    """Look at a shard; what is wrong with it is added to the run's problems."""
    shard = run.manifest.shards[number]
    file = open_file(run, shard)
    if isinstance(file, Problem):
        run.problems.append(file)
        run.counted = False
        return
    try:
        look = _Look(number, shard, file.fd, file.size)
    except OSError as error:
        run.problems.append(unreadable(run.root, shard.file, error))
        run.counted = False
        return
    for entry in _entries(run, look):
        _check_record(run, look, entry)
        if int.from_bytes(entry.key, "big") < ATTACHMENT_BIT:
            counter.add(entry.nbytes)
    run.problems += _conclude(run, look)


def open_file(run: Run, entry: FileEntry) -> OpenFile | Problem:
    """A file of the dataset, or the problem that it cannot be opened. Raises `ResourceError`."""
    try:
        return OpenFile(run.root / entry.file)
    except FileNotFoundError:
        return problem(run, entry.file, "missing", "no such file", f"{entry.bytes:,} bytes")
    except CorruptError:
        return problem(run, entry.file, "missing", "not a regular file", f"{entry.bytes:,} bytes")
    except OSError as error:
        return unreadable(run.root, entry.file, error)


def unreadable(root: Path, file: str, error: OSError) -> Problem:
    """The problem that the system's refusal is. Raises `ResourceError` when it is not the file's fault."""
    raise_if_exhausted(error, root / file)
    found = error.strerror or str(error)
    return Problem(None, None, None, found, "a readable file", _SEE_TO_IT, kind="unreadable", shard=file)


def problem(run: Run, file: str, kind: str, found: str, expected: str) -> Problem:
    """Something that is wrong with a file of the dataset."""
    fix = advise_pages(run.root) if kind == "pages" else advise(run.root / file)
    return Problem(None, None, None, found, expected, fix, kind=kind, shard=file)


def problem_of(run: Run, file: str, error: DatasetError | OSError) -> Problem:
    """The problem that an error at reading index or names is; `file` where the error names none."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and not isinstance(error, CorruptError):
        return unreadable(run.root, Path(cause.filename).name if cause.filename else file, cause)
    where = error.shard if isinstance(error, CorruptError) else file
    return Problem(None, None, None, str(error), "", "", kind="index", shard=where)


def _entries(run: Run, look: _Look) -> list[pages.Entry]:
    """Where the shard's records lie: by its pages or, where those are damaged, by the index."""
    shard = look.shard
    if look.size != shard.bytes:
        wanted = f"{shard.bytes:,} bytes as dataset.json says"
        look.faults.append(problem(run, shard.file, "size", f"{look.size:,} bytes", wanted))
    try:
        entries = list(pages.walk(look.fd))
    except DamageError as error:
        look.faults.append(problem(run, shard.file, error.kind, error.found, error.expected))
    except OSError as error:
        look.faults.append(unreadable(run.root, shard.file, error))
    else:
        _check_counts(run, look, entries)
        return _leave_out_cut(run, look, entries)
    look.walked = False
    return _leave_out_cut(run, look, list(_entries_by_index(run, look)))


def _entries_by_index(run: Run, look: _Look) -> Iterator[pages.Entry]:
    """Where the index says that the shard's samples lie: for a shard whose own pages cannot be walked."""
    for sample in run.manifest.numbers_of(look.shard):
        row = _row_of(run, sample)
        if row is None:
            return
        end = int(row["offset"]) + int(row["record_bytes"])
        if int(row["shard"]) == look.number and end <= look.shard.bytes:
            yield pages.Entry(sample.to_bytes(KEY_BYTES, "big"), int(row["offset"]), int(row["record_bytes"]))


def _check_counts(run: Run, look: _Look, entries: Sequence[pages.Entry]) -> None:
    shard = look.shard
    keys = [int.from_bytes(entry.key, "big") for entry in entries]
    samples = [key for key in keys if not key & ATTACHMENT_BIT]
    # No more numbers than there are samples: the manifest may name more than memory holds.
    if samples != list(itertools.islice(run.manifest.numbers_of(shard), len(samples) + 1)):
        others = " with other numbers" if len(samples) == shard.samples else ""
        wanted = f"{count_of(shard.samples, 'sample')} from number {shard.first} on"
        found = f"{count_of(len(samples), 'sample')}{others}"
        look.faults.append(problem(run, shard.file, "pages", found, wanted))
        look.walked = False
    attachments = len(keys) - len(samples) - (INFO_KEY in keys)
    if attachments != shard.attachments:
        found = count_of(attachments, "attachment")
        look.faults.append(problem(run, shard.file, "pages", found, f"{shard.attachments}"))
        look.walked = False


def _leave_out_cut(run: Run, look: _Look, entries: Sequence[pages.Entry]) -> list[pages.Entry]:
    """The records that lie inside the file; those behind its end are one problem, not one each."""
    inside = [entry for entry in entries if entry.offset + entry.nbytes <= look.size]
    cut = len(entries) - len(inside)
    if cut:
        key = min(int.from_bytes(entry.key, "big") for entry in entries if entry.offset + entry.nbytes > look.size)
        found = f"{cut} records that do not end inside the file of {look.size:,} bytes, from this one on"
        fault = problem(run, look.shard.file, "size", found, f"{look.shard.bytes:,} bytes as dataset.json says")
        is_sample = key < ATTACHMENT_BIT
        look.faults.append(replace(fault, sample=known_name(run, key), index=key if is_sample else None))
        look.headless = True
    return inside


def _check_record(run: Run, look: _Look, entry: pages.Entry) -> None:
    key = int.from_bytes(entry.key, "big")
    is_sample = not key & ATTACHMENT_BIT
    index = key if is_sample else None
    run.samples += is_sample
    look.samples += is_sample
    name = known_name(run, key) if is_sample else None
    try:
        prefix, header = read_head(look.fd, entry)
    except (DamageError, OSError) as error:
        damage = _as_damage(run, look, error)
        look.headless = True
        look.record_faults.append(_record_problem(look.shard, name, index, damage))
        if is_sample and damage.kind in ("prefix", "size", "unreadable"):
            look.verdicts.append(_UNREADABLE if damage.kind == "unreadable" else _ABSENT)
        return
    look.heads[key] = prefix.header_xxh3
    name = header.name or name
    look.first_name = look.first_name or name
    _count(run, header, key)
    damages = list(_damages_of(run, look, entry, prefix, header))
    look.record_faults += [_record_problem(look.shard, name, index, damage) for damage in damages]


def _damages_of(run: Run, look: _Look, entry: pages.Entry, prefix: Prefix, header: Header) -> Iterator[DamageError]:
    """What is wrong with a record whose header can be read."""
    key = int.from_bytes(entry.key, "big")
    is_sample = not key & ATTACHMENT_BIT
    try:
        if is_sample:
            _check_row(run, look.number, entry, prefix, header, key)
            _check_split(run, header, key)
    except DamageError as error:
        look.verdicts.append(_STRANGER)
        yield error
        return
    try:
        _check_files(header)
    except DamageError as error:
        yield error
        return
    if run.quick:
        return
    run.bytes += entry.nbytes
    try:
        yield from check_contents(look.fd, entry, prefix, header)
    except OSError as error:
        yield _as_damage(run, look, error)
        if is_sample:
            look.verdicts.append(_UNREADABLE)


def _as_damage(run: Run, look: _Look, error: DamageError | OSError) -> DamageError:
    """A read that the disk refused is damage like any other. Raises `ResourceError` where it is not the disk."""
    if isinstance(error, DamageError):
        return error
    fault = unreadable(run.root, look.shard.file, error)
    return DamageError(fault.found, fault.expected, kind=fault.kind)


def _check_row(run: Run, number: int, entry: pages.Entry, prefix: Prefix, header: Header, key: int) -> None:
    """Hold the record against index and names."""
    row = make_row(run.manifest.schema, number, entry.offset, prefix, header)
    if key >= run.manifest.numbers:
        raise DamageError(f"a record of number {key}", f"numbers below {run.manifest.numbers}", kind="index")
    said_row = _row_of(run, key)
    if said_row is not None:
        for column, found, said in zip(said_row.dtype.names or (), row, said_row.item(), strict=True):
            if found != said:
                raise DamageError(f"a record with {column} {found}", f"{said} by the index", kind="index")
    wanted = known_name(run, key)
    if wanted is not None and header.name != wanted:
        raise DamageError(f"the record of {header.name!r}", f"{wanted!r} by names.bin", kind="names")


def _check_split(run: Run, header: Header, number: int) -> None:
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


def _count(run: Run, header: Header, key: int) -> None:
    """Add a record to what the manifest has sums of."""
    if key == INFO_KEY:
        return
    if key & ATTACHMENT_BIT:
        run.source_bytes += sum(item.nbytes for item in header.fields)
        return
    run.source_bytes += sum(file.nbytes for file in header.files)
    run.present.update(item.name for item in header.fields)
    per_point = {field.name for field in run.manifest.schema if field.per_point}
    run.points += next((item.shape[0] for item in header.fields if item.name in per_point and item.shape), 0)


def _conclude(run: Run, look: _Look) -> list[Problem]:
    """What is wrong with a shard, once all of it was looked at; what is wrong with all its samples is said once."""
    shard, digest = look.shard, look.records_xxh3
    is_ours = digest == shard.records_xxh3
    strange = _STRANGER in look.verdicts
    run.counted &= digest is not None and (is_ours or not strange)
    if not is_ours and look.samples and look.verdicts == [_STRANGER] * look.samples:
        faults = [*look.faults, *look.record_faults]
        return faults if len(faults) == 1 else [_explain_exchanged(run, look)]
    faults = [replace(fault, fix=advise_pages(run.root)) if is_ours else fault for fault in look.faults]
    others = [fault for fault in look.record_faults if fault.index is None]
    if look.all_are(_ABSENT):
        found = f"none of its {look.samples} samples where the index says"
        return [*faults, problem(run, shard.file, "prefix", found, "a record for each"), *others]
    if look.all_are(_UNREADABLE):
        found = f"none of its {look.samples} samples can be read ({look.record_faults[0].found})"
        return [*faults, replace(look.record_faults[0], sample=None, index=None, found=found), *others]
    faults += look.record_faults
    return faults or _check_digests(run, look, digest)


def _explain_exchanged(run: Run, look: _Look) -> Problem:
    """The one problem of a shard none of whose samples is one of its own."""
    shard, digest = look.shard, look.digest_read()
    other = next((entry for entry in run.manifest.shards if entry.records_xxh3 == digest), None)
    wanted = f"{count_of(shard.samples, 'sample')} from number {shard.first} on, as dataset.json says"
    if other is not None:
        fault = problem(run, shard.file, "exchanged", f"the records of {other.file}", wanted)
        return replace(fault, fix="give the shards their right names")
    found = f"{count_of(look.samples, 'sample')} of another dataset, one of them {look.first_name}"
    return problem(run, shard.file, "exchanged", found, wanted)


def _check_digests(run: Run, look: _Look, digest: str | None) -> list[Problem]:
    """Hold a shard of which nothing is wrong so far against the digests of its records and of the file."""
    shard = look.shard
    if digest is not None and digest != shard.records_xxh3:
        found = f"records of digest {digest}"
        return [problem(run, shard.file, "digest", found, f"{shard.records_xxh3} as dataset.json says")]
    try:
        if run.quick or digest_file(look.fd) == shard.xxh3_128:
            return []
    except OSError as error:
        return [unreadable(run.root, shard.file, error)]
    found = "bytes outside the records that are not as written"
    fault = problem(run, shard.file, "digest", found, f"digest {shard.xxh3_128}")
    return [replace(fault, fix=advise_pages(run.root))]


def known_name(run: Run, number: int) -> str | None:
    """The name of a sample, where the names can be read."""
    if run.names is None or number >= len(run.names):
        return None
    try:
        return run.names[number]
    except (DatasetError, OSError) as error:
        run.names = None
        run.problems.append(problem_of(run, run.manifest.names[0].file, error))
        return None


def _row_of(run: Run, number: int) -> Any:
    """The index row of a sample, None where the index cannot be read."""
    if run.index is None or number >= len(run.index):
        return None
    try:
        return run.index[number]
    except (DatasetError, OSError) as error:
        run.index = None
        run.problems.append(problem_of(run, run.manifest.index.file, error))
        return None


def _record_problem(shard: ShardEntry, name: str | None, index: int | None, error: DamageError) -> Problem:
    fix = _SEE_TO_IT if error.kind == "unreadable" else _LEAVE_OUT
    return Problem(
        None, name, error.field, error.found, error.expected, fix, kind=error.kind, shard=shard.file, index=index
    )

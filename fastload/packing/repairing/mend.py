"""Writing what a repair can rebuild: shards with damaged pages, index, names and, last, the manifest.

Files are replaced one by one, each in one step, the manifest last; what was there stays beside it. A repair
that was killed can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastload.errors import CorruptError, DatasetError
from fastload.packing.publish import Chunks, Contents, describe
from fastload.packing.repairing.assemble import Part, assemble
from fastload.packing.repairing.by_manifest import is_as_written
from fastload.packing.repairing.cases import Case
from fastload.packing.repairing.diagnose import Diagnosis
from fastload.packing.repairing.examine import Examined, examine_shard
from fastload.store import fs
from fastload.store.files import OpenFile, read_at
from fastload.store.identity import Identity
from fastload.store.index import INDEX_FILE
from fastload.store.manifest import MANIFEST_FILE, ShardEntry, check_manifest, manifest_bytes
from fastload.store.pages import read_map_size
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY
from fastload.store.scan import digest_file
from fastload.store.shard import ShardWriter, map_bytes

_TEMP_PREFIX = f"{fs.TEMP_PREFIX}repair-"
"""Not the usual temporary files: that of the manifest marks an unfinished pack, whose folder may be cleared."""
_INFO_BYTES = 1 << 20


@dataclass
class Mended:
    """What was done, or would be.

    Attributes:
        samples: number of samples that the dataset has now; 0 where it could not be rebuilt.
        shards: number of its shards.
        rebuilt: files written anew, relative to the dataset's folder.
        set_aside: names under which the files that were replaced still lie there.
    """

    samples: int = 0
    shards: int = 0
    rebuilt: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)


def mend(root: Path, found: Diagnosis, *, drop: bool, dry_run: bool) -> Mended:
    """Rebuild what `diagnose` found damaged or missing, as far as the names and places of all samples are known.

    Args:
        root: the dataset's folder.
        found: what is left of the dataset.
        drop: leave out what is damaged or lost.
        dry_run: write nothing.

    Raises:
        DatasetError: nothing sound is left.
        ResourceError: the disk is full.
    """
    done = Mended()
    if not drop and not _all_known(found):
        return done
    if drop and not any(case.sound for case in found.cases):
        raise DatasetError(f"{root}: none of its samples is sound; copy its shards anew, or pack the dataset again")
    mender = _Mender(root, found, done, drop=drop, dry_run=dry_run)
    parts: list[Part] = []
    for case in found.cases:
        end = parts[-1].numbers[-1] + 1 if parts and parts[-1].numbers else parts[-1].entry.first if parts else 0
        part = mender.part_of(case, end)
        parts += [part] if part is not None else []
    contents = assemble(found, parts)
    done.samples = len(contents.names) - sum(stop - start for start, stop in contents.dropped)
    done.shards = len(contents.shards)
    mender.write_side_files(contents)
    return done


def _all_known(found: Diagnosis) -> bool:
    """Whether nothing is known by its number only: from its shard, or from the old index and names."""
    if found.is_open_ended:
        return False
    if found.old.index is not None and found.old.names is not None:
        return True
    return all(_says_all(case) for case in found.cases)


def _says_all(case: Case) -> bool:
    """Whether the header can be read of each sample and, where no manifest counts them, of each attachment."""
    if not case.loses:
        return True
    if case.found is None or case.doubt:
        return False
    attachments = case.expected.origin is not None or case.found.attachments.keys() >= set(case.expected.attachments)
    return attachments and case.found.samples.keys() >= set(case.lost)


class _Mender:
    """Mends one dataset, and keeps count of it in `done`."""

    def __init__(self, root: Path, found: Diagnosis, done: Mended, *, drop: bool, dry_run: bool) -> None:
        self._root = root
        self._found = found
        self._done = done
        self._drop = drop
        self._dry_run = dry_run
        self._moves = False  # whether a dry run would move records to other places

    def part_of(self, case: Case, end: int) -> Part | None:
        """A shard as the mended dataset has it, its file made anew where needed; None: it has nothing for it.

        `end` is the number after the samples before it.
        """
        expected = case.expected
        numbers = case.sound if self._drop else sorted({*case.sound, *case.lost})
        attachments = len(case.sound_attachments) + (0 if self._drop else case.lost_attachments)
        if not numbers and not attachments:
            return None
        first = numbers[0] if numbers else end
        if case.found is None or (case.loses and not self._drop):
            entry = expected.current or _entry(case.found, first, len(numbers), attachments)
            return Part(case, replace(entry, first=first), case.found, numbers)
        if not self._is_to_be_made_anew(case):
            return Part(case, _entry(case.found, first, len(numbers), attachments), case.found, numbers)
        if self._dry_run:
            self._done.rebuilt.append(expected.file)
            self._moves |= case.loses
            known = expected.origin if expected.origin is not None and not case.loses else None
            entry = known or _entry(case.found, first, len(numbers), attachments)
            return Part(
                case, replace(entry, first=first, samples=len(numbers), attachments=attachments), case.found, numbers
            )
        shard = self._make_anew(case)
        return Part(case, _entry(shard, first, len(numbers), attachments), shard, numbers)

    def _is_to_be_made_anew(self, case: Case) -> bool:
        if case.loses:
            return case.broken
        return not case.is_as_written and (case.broken or case.expected.origin is not None)

    def _make_anew(self, case: Case) -> Examined:
        """Write a shard's sound records to a file of its own, where that is better than what lies there."""
        old, expected = case.found, case.expected
        assert old is not None
        path = self._root / expected.file
        with fs.removed_on_failure(fs.temporary(path)):
            digest = self._write_copy(path, case)
            known = [entry.xxh3_128 for entry in (expected.origin, expected.current) if entry is not None]
            if digest not in known and not case.broken:  # rewritten by another tool, which left nothing damaged
                fs.remove(fs.temporary(path))
                return old
            aside = fs.set_aside(path)
            fs.publish(path)
        self._note(path, aside)
        return examine_shard(self._root, expected.file, self._found.kind.schema)

    def _write_copy(self, path: Path, case: Case) -> str:
        """Write a shard's sound records to its temporary file. Gives the file's digest."""
        old = case.found
        assert old is not None
        places = [old.places[key] for key in (*case.sound, *case.sound_attachments)]
        source = OpenFile(path)
        with ShardWriter(path, _map_size(source.fd, [place.nbytes for place in places])) as writer:
            for place in places:
                data = read_at(source.fd, place.nbytes, place.offset)
                if len(data) != place.nbytes:
                    raise CorruptError(f"{path}: cut short while it was read; run the command again", shard=old.file)
                writer.put(int.from_bytes(place.key, "big"), memoryview(data))
            writer.put(INFO_KEY, self._identity_of(case).record())
        copy = OpenFile(fs.temporary(path))
        return digest_file(copy.fd)

    def _identity_of(self, case: Case) -> Identity:
        """What a shard says of itself or, where that is damaged, what follows from the others."""
        expected = case.expected
        if case.found is not None and case.found.identity is not None:
            return case.found.identity
        return Identity(
            kind=self._found.kind,
            first=expected.numbers.start,
            samples=len(expected.numbers),
            first_attachment=expected.attachments.start & ~ATTACHMENT_BIT,
            attachments=len(expected.attachments),
            before=self._name_before(case),
            more=case is not self._found.cases[-1],
        )

    def _name_before(self, case: Case) -> bytes:
        number = case.expected.numbers.start - 1
        if not case.expected.numbers or number < 0:
            return b""
        for other in self._found.cases:
            sample = other.found.samples.get(number) if other.found is not None else None
            if sample is not None:
                return sample.name
        return self._found.old.names.raw(number) if self._found.old.names is not None else b""

    def write_side_files(self, contents: Contents) -> None:
        """Write index, names and manifest, those that are not there as they should be."""
        files: dict[str, Chunks] = dict(contents.side_files())
        described = describe(files)
        manifest = contents.manifest(described)
        try:
            check_manifest(manifest)
        except ValueError as error:
            raise DatasetError(
                f"{self._root}: what its shards say cannot be right together ({error}); copy them anew, or pack the"
                " dataset again"
            ) from error
        files[MANIFEST_FILE] = [manifest_bytes(manifest)]
        described |= describe({MANIFEST_FILE: files[MANIFEST_FILE]})
        for file, chunks in files.items():
            moved = self._moves and file in (INDEX_FILE, MANIFEST_FILE)
            if is_as_written(self._root, described[file]) and not moved:
                continue
            if self._dry_run:
                self._done.rebuilt.append(file)
                continue
            path = self._root / file
            self._note(path, fs.replace_keeping(path, chunks, path.with_name(_TEMP_PREFIX + file)))

    def _note(self, path: Path, aside: Path | None) -> None:
        """Remember that a file was replaced, and the name that the old one keeps."""
        self._done.rebuilt.append(path.relative_to(self._root).as_posix())
        if aside is not None:
            self._done.set_aside.append(aside.relative_to(self._root).as_posix())


def _map_size(fd: int, record_bytes: Sequence[int]) -> int:
    """The map size to write a copy with: LMDB keeps it in the file, so the same makes the same file."""
    same = read_map_size(fd)
    return same if same is not None and sum(record_bytes) < same < 1 << 46 else map_bytes([*record_bytes, _INFO_BYTES])


def _entry(shard: Examined | None, first: int, samples: int, attachments: int) -> ShardEntry:
    assert shard is not None, "where a shard is missing that no manifest names, nothing is rebuilt"
    return ShardEntry(shard.file, shard.nbytes, shard.xxh3_128, first, samples, attachments, shard.records_xxh3)

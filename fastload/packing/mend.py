"""Writing what a repair can rebuild: shards with damaged pages, index, names and, last, the manifest.

Files are replaced one by one, each in one step, the manifest last; what was there stays beside it. A repair
that was killed can be run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fastload.errors import CorruptError, DatasetError
from fastload.packing.assemble import Part, assemble
from fastload.packing.diagnose import Case, Diagnosis
from fastload.packing.examine import Examined, examine_shard
from fastload.packing.publish import Chunks, Contents, describe
from fastload.schema import Problem
from fastload.store import fs
from fastload.store.files import BlockEntry, OpenFile, describe_blocks, read_at
from fastload.store.identity import Identity
from fastload.store.manifest import MANIFEST_FILE, ShardEntry, manifest_bytes
from fastload.store.record import INFO_KEY
from fastload.store.scan import digest_file
from fastload.store.shard import ShardWriter, map_bytes

_TEMP_PREFIX = f"{fs.TEMP_PREFIX}repair-"
"""Not the usual temporary files: that of the manifest marks an unfinished pack, whose folder may be cleared."""
_INFO_BYTES = 1 << 16


@dataclass
class Mended:
    """What was done, or would be.

    Attributes:
        samples: number of samples that the dataset has now; 0 where it could not be rebuilt.
        shards: number of its shards.
        rebuilt: files written anew, relative to the dataset's folder.
        set_aside: names under which the files that were replaced still lie there.
        problems: what turned out to be more than can be mended.
    """

    samples: int = 0
    shards: int = 0
    rebuilt: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


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
    parts = [part for case in found.cases if (part := mender.part_of(case)) is not None]
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
    return all(_says_all(case, attachments=found.old.manifest is None) for case in found.cases)


def _says_all(case: Case, *, attachments: bool) -> bool:
    """Whether the header of each sample can be read, and of each attachment where that is asked for."""
    if case.found is None:
        return False
    samples = set(case.expected.numbers) <= set(case.found.samples)
    return samples and (not attachments or set(case.expected.attachments) <= set(case.found.attachments))


class _Mender:
    """Mends one dataset, and keeps count of it in `done`."""

    def __init__(self, root: Path, found: Diagnosis, done: Mended, *, drop: bool, dry_run: bool) -> None:
        self._root = root
        self._found = found
        self._done = done
        self._drop = drop
        self._dry_run = dry_run

    def part_of(self, case: Case) -> Part | None:
        """A shard as the mended dataset has it, its file made anew where needed; None: it has nothing for it."""
        old, entry = case.found, case.expected.entry
        if self._drop and not (case.sound or case.sound_attachments):
            return None
        if old is None or not self._is_to_be_made_anew(case):
            return self._part(case, old)
        if self._dry_run:
            self._done.rebuilt.append(case.expected.file)
            return self._part(case, old)
        path = self._root / case.expected.file
        digest = self._write_copy(path, case)
        if case.is_whole and entry is not None and digest != entry.xxh3_128 and not self._accepts(case):
            # Its records are sound, yet they do not make the file that was packed: another tool rewrote it, or
            # it was exchanged.
            fs.remove(fs.temporary(path))
            if case.vouched:
                return self._part(case, old)
            self._done.problems.append(_doubt(case))
            return Part(entry, old, case.expected.numbers)
        aside = fs.set_aside(path)
        fs.publish(path)
        self._note(path, aside)
        return self._part(case, examine_shard(self._root, case.expected.file, self._found.kind.schema))

    def _is_to_be_made_anew(self, case: Case) -> bool:
        old = case.found
        assert old is not None
        damaged = old.pages_damage is not None or old.identity is None
        if case.is_whole:
            return not case.is_as_packed and (damaged or case.expected.entry is not None)
        return self._drop and (damaged or bool(old.damage))

    @staticmethod
    def _accepts(case: Case) -> bool:
        """Whether a copy that differs from the file that was packed is better than what lies there."""
        old = case.found
        return case.vouched and old is not None and (old.pages_damage is not None or old.identity is None)

    def _part(self, case: Case, shard: Examined | None) -> Part:
        expected, entry = case.expected, case.expected.entry
        numbers = case.sound if self._drop else expected.numbers
        if entry is not None and (shard is None or not (self._drop or case.is_whole)):
            return Part(entry, shard, numbers)
        assert shard is not None, "where a shard is missing that no manifest names, nothing is rebuilt"
        attachments = len(case.sound_attachments if self._drop else expected.attachments)
        first = numbers[0] if numbers else 0
        made = ShardEntry(expected.file, shard.nbytes, shard.xxh3_128, first, len(numbers), attachments)
        return Part(made, shard, numbers)

    def _write_copy(self, path: Path, case: Case) -> str:
        """Write a shard's sound records to its temporary file. Gives the file's digest."""
        old = case.found
        assert old is not None
        places = [old.places[key] for key in (*case.sound, *case.sound_attachments)]
        source = OpenFile(path)
        with ShardWriter(path, map_bytes([*(place.nbytes for place in places), _INFO_BYTES])) as writer:
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
        first = (
            expected.entry.first if expected.entry is not None else next(iter(expected.numbers), self._found.numbers)
        )
        more = case is not self._found.cases[-1]
        before = self._name_before(case) if expected.numbers else b""
        return Identity(self._found.kind, first, len(expected.numbers), len(expected.attachments), before, more)

    def _name_before(self, case: Case) -> bytes:
        number = case.expected.numbers[0] - 1
        for other in self._found.cases:
            sample = other.found.samples.get(number) if other.found is not None else None
            if sample is not None:
                return sample.name
        names = self._found.old.names
        return names.raw(number) if names is not None and number >= 0 else b""

    def write_side_files(self, contents: Contents) -> None:
        """Write index, names and manifest, those that are not there as they should be."""
        files: dict[str, Chunks] = dict(contents.side_files())
        described = describe(files)
        files[MANIFEST_FILE] = [manifest_bytes(contents.manifest(described))]
        described |= describe({MANIFEST_FILE: files[MANIFEST_FILE]})
        for file, chunks in files.items():
            if self._is_there(described[file]):
                continue
            if self._dry_run:
                self._done.rebuilt.append(file)
                continue
            path = self._root / file
            self._note(path, fs.replace_keeping(path, chunks, path.with_name(_TEMP_PREFIX + file)))

    def _is_there(self, entry: BlockEntry) -> bool:
        try:
            return describe_blocks(self._root, entry.file) == entry
        except (FileNotFoundError, CorruptError):
            return False

    def _note(self, path: Path, aside: Path | None) -> None:
        """Remember that a file was replaced, and the name that the old one keeps."""
        self._done.rebuilt.append(path.relative_to(self._root).as_posix())
        if aside is not None:
            self._done.set_aside.append(aside.relative_to(self._root).as_posix())


def _doubt(case: Case) -> Problem:
    return Problem(
        None, None, None, "records that are sound, but not the file that was packed, and no index tells whose they are",
        "the file with the digest by dataset.json",
        "copy it anew; or, where it is surely this dataset's, move dataset.json away: then the shards alone count",
        kind="digest", shard=case.expected.file,
    )  # fmt: skip

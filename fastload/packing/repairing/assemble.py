"""Index, names and manifest of mended shards, made of what each of their records says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from fastload.packing.publish import Contents
from fastload.packing.repairing.by_manifest import FURTHER, LEFT_OUT
from fastload.packing.repairing.cases import Case
from fastload.packing.repairing.diagnose import Diagnosis
from fastload.packing.repairing.examine import Examined
from fastload.store.index import row_dtype
from fastload.store.manifest import Range, ShardEntry
from fastload.units import count_of


@dataclass(frozen=True)
class Part:
    """A shard of the mended dataset.

    Attributes:
        case: the shard as it was found.
        entry: what the manifest will say of it.
        found: what it holds now; None where its file is missing.
        numbers: the numbers of its samples, ascending.
    """

    case: Case
    entry: ShardEntry
    found: Examined | None
    numbers: Sequence[int]


def assemble(found: Diagnosis, parts: Sequence[Part]) -> Contents:
    """All that index, names and manifest are made of.

    A sample that only the old index and names know keeps what they say of it, also when it is dropped: so it is
    known again should it be found.

    Args:
        found: what was left of the dataset.
        parts: its shards as they will be; numbers that none of them has are dropped.
    """
    table = _Table(found)
    entries: list[ShardEntry] = []
    for part in parts:
        table.add(len(entries), part)
        entries.append(part.entry)
    dropped = tuple(_gaps(table.kept, found.numbers))
    left_out = _sentence(found, entries, dropped)
    kind = replace(found.kind, lossy=(*found.kind.lossy, *left_out))
    origin = tuple(_origin_of(case, parts) for case in found.cases) if left_out else ()
    source_bytes = _source_bytes(found, parts, dropped)
    return Contents(kind, tuple(entries), [table.rows], table.names, table.splits(), source_bytes, dropped, origin)


class _Table:
    """One row for each number: index row, name, split."""

    def __init__(self, found: Diagnosis) -> None:
        self._old = found.old
        self.rows = np.zeros(found.numbers, row_dtype(found.kind.schema))
        self.names = [b""] * found.numbers
        self.kept: list[int] = []
        self._splits = [""] * found.numbers
        self._enter_old(found)
        for case in found.cases:
            if case.found is not None and not case.doubt:
                self._enter(case.expected.numbers, case.found)

    def _enter_old(self, found: Diagnosis) -> None:
        old = self._old
        if old.index is not None:
            self.rows[:] = old.index.read(0, found.numbers)
        if old.names is not None:
            self.names = [old.names.raw(number) for number in range(found.numbers)]
        for split, ranges in old.manifest.splits.items() if old.manifest is not None else ():
            for start, stop in ranges:
                self._splits[start:stop] = [split] * (stop - start)

    def _enter(self, numbers: Iterable[int], shard: Examined) -> None:
        for number in numbers:
            sample = shard.samples.get(number)
            if sample is not None:
                self.rows[number] = sample.row
                self.names[number], self._splits[number] = sample.name, sample.split

    def add(self, position: int, part: Part) -> None:
        """Enter a shard's samples; `position` is its place in the manifest."""
        if part.found is not None and not part.case.doubt:
            self._enter(part.numbers, part.found)
        self.kept += part.numbers
        self.rows["shard"][part.numbers] = position

    def splits(self) -> dict[str, tuple[Range, ...]]:
        """For each split its ranges, in order of its first; within a range names ascend."""
        found: dict[str, list[Range]] = {}
        for start, stop in self._runs(self._old_starts()):
            found.setdefault(self._splits[start], []).append((start, stop))
        return {split: tuple(ranges) for split, ranges in found.items()}

    def _old_starts(self) -> set[int]:
        """Where ranges of the old manifest begin, but for those that only follow a number that was left out."""
        manifest = self._old.manifest
        if manifest is None:
            return set()
        gaps = {stop for _, stop in manifest.dropped}
        return {start for ranges in manifest.splits.values() for start, _ in ranges} - gaps

    def _runs(self, starts: Set[int]) -> Iterator[Range]:
        begin = previous = -1
        for number in self.kept:
            if previous >= 0 and not self._follows(previous, number, starts):
                yield begin, previous + 1
                begin = number
            begin = number if begin < 0 else begin
            previous = number
        if previous >= 0:
            yield begin, previous + 1

    def _follows(self, before: int, number: int, starts: Set[int]) -> bool:
        """Whether a sample belongs to the same range as the one before it."""
        if number != before + 1 or number in starts or self._splits[number] != self._splits[before]:
            return False
        return self.names[number] > self.names[before]


def _gaps(kept: Sequence[int], numbers: int) -> Iterator[Range]:
    """The ranges of numbers below `numbers` that are not kept."""
    end = 0
    for number in [*kept, numbers]:
        if number > end:
            yield end, number
        end = number + 1


def _sentence(found: Diagnosis, entries: Sequence[ShardEntry], dropped: Sequence[Range]) -> list[str]:
    """What the manifest says of what is left out."""
    attachments = sum(len(case.expected.attachments) for case in found.cases) - sum(e.attachments for e in entries)
    samples = sum(stop - start for start, stop in dropped)
    counts = (("sample", samples), ("attachment", attachments), ("shard", len(found.cases) - len(entries)))
    parts = [count_of(count, what) for what, count in counts if count > 0]
    earlier = found.old.manifest.lossy if found.old.manifest is not None else ()
    parts += [FURTHER] if found.is_open_ended or any(FURTHER in text for text in earlier) else []
    return [f"{LEFT_OUT}: {', '.join(parts)}"] if parts else []


def _origin_of(case: Case, parts: Sequence[Part]) -> ShardEntry:
    """What is known of a shard as it was packed."""
    expected, found = case.expected, case.found
    if expected.origin is not None:
        return expected.origin
    if not case.loses:
        return replace(next(part.entry for part in parts if part.case is case), first=expected.numbers.start)
    keys = {*expected.numbers, *expected.attachments}
    records = found.records_xxh3 if found is not None and expected.certain and keys <= found.heads.keys() else ""
    return ShardEntry(
        expected.file, 0, "", expected.numbers.start, len(expected.numbers), len(expected.attachments), records
    )


def _source_bytes(found: Diagnosis, parts: Sequence[Part], dropped: Sequence[Range]) -> int:
    """Size of the source files in the shards."""
    manifest = found.old.manifest
    attachments = sum(part.entry.attachments for part in parts)
    if manifest is not None and (tuple(dropped), attachments) == (
        manifest.dropped,
        sum(entry.attachments for entry in manifest.shards),
    ):
        return manifest.source_bytes
    shards = [(part.found, part) for part in parts if part.found is not None]
    samples = (shard.samples.get(number) for shard, part in shards for number in part.numbers)
    return sum(sample.source_bytes for sample in samples if sample is not None) + sum(
        size
        for shard, part in shards
        for key, size in shard.attachments.items()
        if key in part.case.expected.attachments
    )

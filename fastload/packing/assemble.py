"""Index, names and manifest of mended shards, made of what each of their records says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from fastload.packing.diagnose import LEFT_OUT, Diagnosis
from fastload.packing.examine import Examined
from fastload.packing.publish import Contents
from fastload.store.index import row_dtype
from fastload.store.manifest import Range, ShardEntry
from fastload.units import count_of


@dataclass(frozen=True)
class Part:
    """A shard of the mended dataset.

    Attributes:
        entry: what the manifest will say of it.
        found: what it holds; None where its file is missing.
        numbers: the numbers of its samples, ascending.
    """

    entry: ShardEntry
    found: Examined | None
    numbers: Sequence[int]


def assemble(found: Diagnosis, parts: Sequence[Part]) -> Contents:
    """All that index, names and manifest are made of.

    A sample that only the old index and names know keeps what they say of it.

    Args:
        found: what was left of the dataset.
        parts: its shards as they will be; numbers that none of them has are dropped.
    """
    table = _Table(found)
    entries: list[ShardEntry] = []
    end = 0
    for part in parts:
        table.add(len(entries), part)
        entries.append(part.entry if part.numbers else replace(part.entry, first=end))
        end = part.numbers[-1] + 1 if part.numbers else end
    dropped = tuple(_gaps(table.kept, found.numbers))
    attachments = sum(len(case.expected.attachments) for case in found.cases) - sum(
        entry.attachments for entry in entries
    )
    shards = len(found.cases) - len(parts)
    left_out = _sentence(dropped, attachments, shards, further=found.is_open_ended)
    kind = replace(found.kind, lossy=(*found.kind.lossy, *left_out))
    old = found.old.manifest
    source_bytes = old.source_bytes if old is not None and not left_out else _source_bytes(parts)
    return Contents(kind, tuple(entries), [table.rows], table.names, table.splits(), source_bytes, dropped)


class _Table:
    """One row for each number: index row, name, split."""

    def __init__(self, found: Diagnosis) -> None:
        self._old = found.old
        self.rows = np.zeros(found.numbers, row_dtype(found.kind.schema))
        self.names = [b""] * found.numbers
        self.kept: list[int] = []
        self._splits = [""] * found.numbers

    def add(self, position: int, part: Part) -> None:
        """Enter a shard's samples; `position` is its place in the manifest."""
        for number in part.numbers:
            sample = part.found.samples.get(number) if part.found is not None else None
            if sample is not None:
                self.rows[number] = sample.row
                self.names[number], self._splits[number] = sample.name, sample.split
            else:
                self._enter_old(number)
        self.kept += part.numbers
        self.rows["shard"][part.numbers] = position

    def _enter_old(self, number: int) -> None:
        manifest, index, names = self._old.manifest, self._old.index, self._old.names
        if manifest is None or index is None or names is None:
            raise AssertionError(f"sample number {number} is known to nobody")
        self.rows[number], self.names[number] = index[number], names.raw(number)
        self._splits[number] = next(
            split for split, ranges in manifest.splits.items() if any(start <= number < stop for start, stop in ranges)
        )

    def splits(self) -> dict[str, tuple[Range, ...]]:
        """For each split its ranges, in order of its first; within a range names ascend."""
        manifest = self._old.manifest
        starts = (
            {start for ranges in manifest.splits.values() for start, _ in ranges} if manifest is not None else set()
        )
        found: dict[str, list[Range]] = {}
        for start, stop in self._runs(starts):
            found.setdefault(self._splits[start], []).append((start, stop))
        return {split: tuple(ranges) for split, ranges in found.items()}

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


def _source_bytes(parts: Iterable[Part]) -> int:
    """Size of the source files in the shards."""
    shards = [(part.found, part.numbers) for part in parts if part.found is not None]
    samples = sum(shard.samples[number].source_bytes for shard, numbers in shards for number in numbers)
    return samples + sum(size for shard, _ in shards for size in shard.attachments.values())


def _gaps(kept: Sequence[int], numbers: int) -> Iterator[Range]:
    """The ranges of numbers below `numbers` that are not kept."""
    end = 0
    for number in [*kept, numbers]:
        if number > end:
            yield end, number
        end = number + 1


def _sentence(dropped: Sequence[Range], attachments: int, shards: int, *, further: bool) -> list[str]:
    """What the manifest says of what was left out."""
    samples = sum(stop - start for start, stop in dropped)
    counts = (("sample", samples), ("attachment", attachments), ("shard", shards))
    parts = [count_of(count, what) for what, count in counts if count > 0]
    parts += ["whatever came behind the last shard"] if further else []
    return [f"{LEFT_OUT}: {', '.join(parts)}"] if parts else []

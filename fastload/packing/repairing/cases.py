"""One shard as repair sees it: what it should hold, what it does, and what is wrong with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from fastload.packing.repairing.examine import Damaged, Examined
from fastload.schema import Problem
from fastload.store.manifest import ShardEntry
from fastload.store.record import ATTACHMENT_BIT, DamageError
from fastload.units import count_of

GET_BACK = "copy the file anew, or leave out what is lost with drop_damaged=True (--drop-damaged)"
_DOUBT = (
    "copy it anew; or, where it is surely this dataset's, move dataset.json away, so that the shards alone count;"
    " or leave it out with drop_damaged=True (--drop-damaged)"
)
MAX_MISSING = 10_000_000
"""More samples or attachments than this are not missing from one shard: such a number is itself damaged, or forged."""
NameOf = Callable[[int], str | None]


@dataclass(frozen=True)
class Expected:
    """What a shard should hold.

    Attributes:
        file: its path relative to the dataset's folder.
        numbers: the numbers of its samples, as it was packed.
        attachments: the keys of its attachments, as it was packed.
        origin: what is known of it as it was packed; None without a manifest.
        current: what the manifest says of it now; None without one, and where it was left out.
        gone: numbers that an earlier repair left out.
        gone_attachments: how many of its attachments an earlier repair left out.
        certain: whether that is all; False where nothing undamaged says so.
    """

    file: str
    numbers: range
    attachments: range
    origin: ShardEntry | None = None
    current: ShardEntry | None = None
    gone: Set[int] = frozenset()
    gone_attachments: int = 0
    certain: bool = True


@dataclass(frozen=True)
class Case:
    """A shard: what it should hold and what it does.

    Attributes:
        expected: what it should hold.
        found: what it holds; None where there is no usable file.
        doubt: whether nothing tells that its records are this dataset's, although its manifest could.
    """

    expected: Expected
    found: Examined | None
    doubt: bool = False

    @functools.cached_property
    def sound(self) -> list[int]:
        """Numbers of its undamaged samples, ascending."""
        return self._sound(self.expected.numbers)

    @functools.cached_property
    def sound_attachments(self) -> list[int]:
        """Keys of its undamaged attachments, ascending."""
        return self._sound(self.expected.attachments)

    def _sound(self, keys: range) -> list[int]:
        found = self.found
        return [] if found is None or self.doubt else [key for key in keys if found.is_sound(key)]

    @functools.cached_property
    def lost(self) -> list[int]:
        """Numbers of the samples that are damaged or not there, but for those left out earlier."""
        sound = set(self.sound)
        return [number for number in self.expected.numbers if number not in sound and number not in self.expected.gone]

    @property
    def lost_attachments(self) -> int:
        """How many attachments are damaged or not there, beside those left out earlier."""
        expected = self.expected
        return max(len(expected.attachments) - expected.gone_attachments - len(self.sound_attachments), 0)

    @property
    def loses(self) -> bool:
        """Whether something of it is damaged or lost that was not left out earlier."""
        return bool(self.lost or self.lost_attachments) or not self.expected.certain

    @property
    def is_as_written(self) -> bool:
        """Whether the file is, byte for byte, the one that was packed or that an earlier repair left."""
        entries = (self.expected.origin, self.expected.current)
        return self.found is not None and self.found.xxh3_128 in [e.xxh3_128 for e in entries if e and e.xxh3_128]

    @property
    def broken(self) -> bool:
        """Whether the file is more than short of records: pages, info record or others are damaged."""
        found = self.found
        return found is not None and (found.pages_damage is not None or found.identity is None or bool(found.damage))


def problems_of(case: Case, name_of: NameOf) -> Iterator[Problem]:
    """What is damaged or lost of a shard, and was not left out earlier.

    Args:
        case: the shard.
        name_of: gives the name of a sample number, where the old names tell it.
    """
    expected, found = case.expected, case.found
    if not case.loses:
        return
    if found is None:
        yield Problem(
            None, None, None, "no usable file", _describe(expected), GET_BACK, kind="missing", shard=expected.file
        )
        return
    if case.doubt:
        text = "records that are sound in themselves, but no index tells that they are those that were packed"
        yield _problem(found, DamageError(text, "the file that was packed, or its index rows", kind="digest"), _DOUBT)
        return
    for number in case.lost:
        yield from _of_sample(found, number, name_of)
    if case.lost_attachments:
        for key in expected.attachments:
            if not found.is_sound(key):
                yield from _of_attachment(found, key)
    if not expected.certain:
        text = "its pages and its info record are damaged"
        yield _problem(found, DamageError(text, "one of them, to tell what else it held", kind="pages"), GET_BACK)


def _describe(expected: Expected) -> str:
    numbers, attachments = expected.numbers, len(expected.attachments)
    parts = [f"samples {numbers[0]} to {numbers[-1]}"] if numbers else []
    parts += [count_of(attachments, "attachment")] if attachments else []
    return " and ".join(parts) or "a shard"


def _of_sample(found: Examined, number: int, name_of: NameOf) -> Iterator[Problem]:
    lost = DamageError(f"nothing of sample number {number}", "its record", kind="lost")
    name, errors = found.damage.get(number, Damaged(None, (lost,)))
    for error in errors:
        yield _problem(found, error, GET_BACK, name if name is not None else name_of(number), number)


def _of_attachment(found: Examined, key: int) -> Iterator[Problem]:
    lost = DamageError("nothing of it", "its record", kind="lost")
    name, errors = found.damage.get(key, Damaged(None, (lost,)))
    for error in errors:
        what = f"attachment {name if name is not None else key & ~ATTACHMENT_BIT}: {error.found}"
        yield _problem(found, DamageError(what, error.expected, kind=error.kind), GET_BACK)


def _problem(
    found: Examined, error: DamageError, fix: str, sample: str | None = None, index: int | None = None
) -> Problem:
    return Problem(
        None, sample, error.field, error.found, error.expected, fix, kind=error.kind, shard=found.file, index=index
    )

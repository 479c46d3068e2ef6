"""The shards as they themselves say: for a dataset whose manifest is lost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fastload.errors import DatasetError
from fastload.packing.repairing.cases import GET_BACK, MAX_MISSING, Case, Expected
from fastload.packing.repairing.examine import Examined
from fastload.schema import Problem
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY
from fastload.store.shard import shard_file

_TWO_DATASETS = "shards of two datasets? take out those that do not belong, and run the command again"


def cases_by_shards(root: Path, found: Mapping[str, Examined]) -> list[Case]:
    """The shards that are there, in order, and those between them that are not.

    Raises:
        DatasetError: they contradict each other.
    """
    cases: list[Case] = []
    end = attachment = 0
    for file, shard in found.items():
        expected = _expected_of(shard, end, attachment)
        _check_place(root, cases, expected, end, attachment)
        missing = [shard_file(lost) for lost in range(len(cases), int(Path(file).stem))]
        gap = range(end, expected.numbers.start)
        lost = range(attachment | ATTACHMENT_BIT, expected.attachments.start)
        for name in missing:  # what is missing is put down to the first of them
            cases.append(Case(Expected(name, gap, lost, certain=shard.identity is not None), None))
            gap, lost = range(gap.stop, gap.stop), range(lost.stop, lost.stop)
        if not missing:
            _extend_last(root, cases, shard, gap, lost)
        cases.append(Case(expected, shard))
        end, attachment = expected.numbers.stop, expected.attachments.stop & ~ATTACHMENT_BIT
    _check_links(root, cases)
    _refuse_twins(root, cases)
    return cases


def _extend_last(root: Path, cases: list[Case], shard: Examined, gap: range, lost: range) -> None:
    """What lies between two shards belongs to the first, where that says nothing of itself any more."""
    last = cases[-1] if cases else None
    if last is None or last.found is None or last.found.identity is not None:
        if gap or lost:
            raise DatasetError(
                f"{root / shard.file}: {len(gap)} samples and {len(lost)} attachments before its first are missing, yet"
                f" no shard before it is: {_TWO_DATASETS}"
            )
        return
    before = last.expected
    cases[-1] = replace(
        last,
        expected=replace(
            before,
            numbers=range(before.numbers.start, gap.stop),
            attachments=range(before.attachments.start, lost.stop),
            certain=before.certain or shard.identity is not None,
        ),
    )


def _expected_of(shard: Examined, end: int, attachment: int) -> Expected:
    """What a shard should hold as it says itself, else as its pages say, else what is found.

    Args:
        shard: what it holds.
        end: the number after those of the shards before it.
        attachment: the number after those of the attachments before it.
    """
    said = shard.identity
    if said is not None:
        first = said.first
        start = ATTACHMENT_BIT | (said.first_attachment if said.attachments else attachment)
        return Expected(shard.file, range(first, first + said.samples), range(start, start + said.attachments))
    keys = {*shard.places, *(shard.damage if shard.pages_damage is None else ())} - {INFO_KEY}
    samples = [key for key in keys if end <= key < ATTACHMENT_BIT]
    attachments = [key for key in keys if key & ATTACHMENT_BIT]
    return Expected(
        shard.file,
        range(min(samples), max(samples) + 1) if samples else range(end, end),
        range(min(attachments), max(attachments) + 1) if attachments else _no_keys(attachment),
        certain=shard.pages_damage is None,
    )


def _no_keys(attachment: int) -> range:
    return range(attachment | ATTACHMENT_BIT, attachment | ATTACHMENT_BIT)


def _check_place(root: Path, cases: Sequence[Case], expected: Expected, end: int, attachment: int) -> None:
    """See that a shard continues those before it, with a gap at most that can be."""
    places = (
        (expected.numbers.start, end, "samples"),
        (expected.attachments.start & ~ATTACHMENT_BIT, attachment, "attachments"),
    )
    for start, after, what in places:
        if start < after:
            raise DatasetError(
                f"{root / expected.file}: holds {what} from number {start} on, as {cases[-1].expected.file} or another"
                f" before it does: {_TWO_DATASETS}"
            )
        if start - after > MAX_MISSING:
            raise DatasetError(
                f"{root / expected.file}: holds {what} from number {start} on, where {after} comes next: it is damaged,"
                " or not this dataset's; take it out, and run the command again"
            )


def _check_links(root: Path, cases: Sequence[Case]) -> None:
    """See that each shard follows the one that it says it follows."""
    for before, case in itertools.pairwise(cases):
        said = case.found.identity if case.found is not None else None
        earlier = before.found
        if (
            said is None
            or not said.samples
            or earlier is None
            or earlier.identity is None
            or not before.expected.numbers
        ):
            continue
        last = earlier.samples.get(before.expected.numbers[-1])
        if last is not None and last.name != said.before:
            told, found = (name.decode("utf-8", "surrogateescape") for name in (said.before, last.name))
            raise DatasetError(
                f"{root}: {case.expected.file} says that it follows a sample {told!r}; {before.expected.file} ends with"
                f" {found!r}: {_TWO_DATASETS}"
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
                    f"{root}: {earlier} and {case.expected.file} both hold a sample {name}: {_TWO_DATASETS}"
                )


def missing_behind(cases: Sequence[Case]) -> list[Problem]:
    """What the last shard says of others behind it."""
    last = cases[-1].found
    if last is None or (last.identity is not None and not last.identity.more):
        return []
    said = "another follows it" if last.identity is not None else "nothing tells whether another follows it"
    up_to = max((case.expected.numbers.stop for case in cases), default=0) - 1
    found = f"the last shard that is there, with samples up to number {up_to}; {said}"
    return [Problem(None, None, None, found, "all shards", GET_BACK, kind="missing", shard=last.file)]

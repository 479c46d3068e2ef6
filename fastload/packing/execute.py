"""Writing the shards of a plan. Each is an independent unit; bad content found on the way is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastload.errors import DatasetError, FormatError, SourceError
from fastload.packing.plan import Plan, PlannedAttachment, PlannedShard
from fastload.packing.report import Progress
from fastload.packing.source import Loaded, Measured, load, read_attachment
from fastload.schema import Problem
from fastload.store.identity import Identity
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY, encode_record
from fastload.store.scan import ShardResult
from fastload.store.shard import ShardWriter, map_bytes, publish_shard, shard_file

ProgressCallback = Callable[[Progress], None]


@dataclass
class Findings:
    """What reading the sources brought to light.

    Attributes:
        problems: what cannot be packed.
        forced: what looks wrong and was packed because that was asked for.
        nonfinite: NaN and infinite values that were packed as they are.
        nonfinite_files: how many samples have such values.
        first_nonfinite: name of the first of them.
    """

    problems: list[Problem] = field(default_factory=list)
    forced: list[Problem] = field(default_factory=list)
    nonfinite: int = 0
    nonfinite_files: int = 0
    first_nonfinite: str | None = None

    def count_nonfinite(self, sample: str, values: int) -> None:
        """Add a sample's NaN and infinite values."""
        if values:
            self.nonfinite += values
            self.nonfinite_files += 1
            self.first_nonfinite = self.first_nonfinite or sample


class ProgressCounter:
    """Counts samples and bytes of a run and tells the callback after each."""

    def __init__(self, stage: str, samples: int, total_bytes: int, callback: ProgressCallback | None) -> None:
        self._stage, self._samples, self._bytes, self._callback = stage, samples, total_bytes, callback
        self._done = self._done_bytes = 0

    def add(self, nbytes: int) -> None:
        """One more sample, of so many bytes."""
        self._done += 1
        self._done_bytes += nbytes
        if self._callback is not None:
            self._callback(Progress(self._stage, self._done, self._samples, self._done_bytes, self._bytes))


def check_samples(
    plan: Plan, samples: Iterable[Measured], findings: Findings, counter: ProgressCounter, *, force: bool
) -> list[Measured]:
    """Read samples without packing them. Gives the good ones; the problems of the others go to `findings`."""
    good = []
    for measured in samples:
        try:
            _load_checked(plan, measured, findings, force=force)
            good.append(measured)
        except SourceError as error:
            findings.problems += error.problems
        counter.add(sum(measured.sizes.values()))
    return good


def check_attachments(
    source: Path, attachments: Iterable[PlannedAttachment], findings: Findings
) -> tuple[PlannedAttachment, ...]:
    """Read attachments without packing them. Gives the good ones, numbered anew; problems go to `findings`."""
    good: list[PlannedAttachment] = []
    for attachment in attachments:
        data = read_attachment(source, attachment.path, attachment.nbytes)
        if isinstance(data, Problem):
            findings.problems.append(data)
        else:
            good.append(replace(attachment, key=ATTACHMENT_BIT | len(good)))
    return tuple(good)


def write_shard(
    out: Path, plan: Plan, shard: PlannedShard, findings: Findings, counter: ProgressCounter, *, force: bool
) -> ShardResult | None:
    """Write and publish one shard; None, and nothing left of it, when a sample of it is bad.

    After the first bad sample the rest is still read, so that one run reports all.

    Raises:
        ResourceError: the disk is full.
    """
    try:
        with ShardWriter(out / shard_file(shard.number), map_bytes(shard.record_bytes())) as writer:
            _write_records(writer, plan, shard, findings, counter, force=force)
    except _BadShardError as bad:
        check_samples(plan, shard.samples[bad.position :], findings, counter, force=force)
        return None
    result = publish_shard(out, shard.number, plan.schema)
    _check_written(shard, result)
    return result


def _check_written(shard: PlannedShard, result: ShardResult) -> None:
    """See that the file that has the shard's name now is the one that was planned.

    Raises:
        DatasetError: somebody else wrote to it meanwhile.
    """
    wanted = (len(shard.samples), len(shard.attachments))
    found = (len(result.rows), result.attachments)
    if found != wanted:
        raise DatasetError(
            f"{result.file}: {found[0]} samples and {found[1]} attachments; expected {wanted[0]} and {wanted[1]}, as"
            " they were just written: something else writes to this folder; end it, then run the command again"
        )


class _BadShardError(Exception):
    """Ends the writing of a shard at a bad sample; `position` is where to go on checking."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def _write_records(
    writer: ShardWriter, plan: Plan, shard: PlannedShard, findings: Findings, counter: ProgressCounter, *, force: bool
) -> None:
    buffer = bytearray()
    for position, measured in enumerate(shard.samples):
        sample = measured.sample
        number = shard.first + position
        try:
            loaded = _load_checked(plan, measured, findings, force=force)
        except SourceError as error:
            findings.problems += error.problems
            counter.add(sum(measured.sizes.values()))
            raise _BadShardError(position + 1) from error
        record = encode_record(
            number, sample.name, loaded.arrays, split=sample.split, files=loaded.files, buffer=buffer
        )
        with record:  # released before the buffer may grow again
            writer.put(number, record)
        counter.add(sum(measured.sizes.values()))
    for attachment in shard.attachments:
        data = read_attachment(plan.source, attachment.path, attachment.nbytes)
        if isinstance(data, Problem):
            findings.problems.append(data)
            raise _BadShardError(len(shard.samples))
        with encode_record(attachment.key, attachment.name, {"data": data}, buffer=buffer) as record:
            writer.put(attachment.key, record)
    with _identity(plan, shard).record(buffer) as record:
        writer.put(INFO_KEY, record)


def _identity(plan: Plan, shard: PlannedShard) -> Identity:
    more = shard.number + 1 < len(plan.shards)
    return Identity(
        kind=plan.kind,
        first=shard.first,
        samples=len(shard.samples),
        first_attachment=sum(len(earlier.attachments) for earlier in plan.shards[: shard.number]),
        attachments=len(shard.attachments),
        before=_name_before(plan, shard),
        more=more,
    )


def _name_before(plan: Plan, shard: PlannedShard) -> bytes:
    earlier = plan.shards[shard.number - 1].samples if shard.number else ()
    return earlier[-1].sample.name.encode("utf-8", "surrogateescape") if shard.samples and earlier else b""


def _load_checked(plan: Plan, measured: Measured, findings: Findings, *, force: bool) -> Loaded:
    loaded = load(plan.source, plan.schema, measured)
    if loaded.doubts:
        if not force:
            raise FormatError(problems=loaded.doubts)
        findings.forced += loaded.doubts
    findings.count_nonfinite(measured.sample.name, loaded.nonfinite)
    return loaded

"""The shards as their manifest knows them; and the proof that what lies there is what was packed.

A file with the digest of the manifest is beyond doubt, as are records with its digest of records. Else the index
tells of each sample. What neither can tell of is not taken: it may be another dataset's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastload.errors import CorruptError
from fastload.packing.repairing.cases import Case, Expected
from fastload.packing.repairing.examine import Damaged, Examined
from fastload.store.files import BlockEntry, describe_blocks
from fastload.store.identity import Identity, Kind
from fastload.store.index import open_index
from fastload.store.manifest import Manifest, ShardEntry
from fastload.store.names import Names, open_names
from fastload.store.npy import RowFile
from fastload.store.record import ATTACHMENT_BIT, DamageError

LEFT_OUT = "damaged or lost, and left out by fastload repair"
"""Begins the manifest's sentence on what a repair left out."""
FURTHER = "whatever lay in shards behind the last"
"""In that sentence: nobody knew how many shards there were."""
_KIND_NAMES = ("layout", "options", "schema")


@dataclass(frozen=True)
class Old:
    """Manifest, index and names as they lie there, as far as they can be trusted.

    Attributes:
        manifest: the manifest; None where it is missing, damaged, or not that of the shards.
        index: the index, None where it is not as the manifest says.
        names: the names, None where they are not as the manifest says.
    """

    manifest: Manifest | None = None
    index: RowFile | None = None
    names: Names | None = None

    def name(self, number: int) -> str | None:
        """The name of a sample, where it is known."""
        return (self.names[number] or None) if self.names is not None else None


def open_old(root: Path, manifest: Manifest | None) -> Old:
    """Index and names of a manifest, as far as they are as it says."""
    if manifest is None:
        return Old()
    index, *names = (is_as_written(root, entry) for entry in (manifest.index, *manifest.names))
    return Old(
        manifest,
        open_index(root, manifest.schema, manifest.numbers, manifest.index) if index else None,
        open_names(root, manifest.numbers, *manifest.names) if all(names) else None,
    )


def is_as_written(root: Path, entry: BlockEntry) -> bool:
    """Whether a file has the bytes that its entry says. Raises `PermissionError` where it may not be read."""
    try:
        return describe_blocks(root, entry.file) == entry
    except CorruptError:
        return False
    except PermissionError:
        raise
    except OSError:  # missing, a link that leads nowhere, or a disk that does not give it
        return False


def same_kind(one: Kind | Manifest, other: Kind | Manifest) -> bool:
    """Whether two are datasets of one layout, with the same options and fields."""
    return all(getattr(one, name) == getattr(other, name) for name in _KIND_NAMES)


def slots_of(manifest: Manifest) -> tuple[ShardEntry, ...]:
    """The shards as they were packed."""
    return manifest.origin or manifest.shards


def agrees(manifest: Manifest, slot: ShardEntry, said: Identity) -> bool:
    """Whether a shard that says this of itself can be the one that the manifest means."""
    more_than_all = said.more and slot == slots_of(manifest)[-1] and not any(FURTHER in text for text in manifest.lossy)
    counts = slot.samples, slot.attachments
    first = not slot.samples or slot.first == said.first
    return first and counts == (said.samples, said.attachments) and not more_than_all and same_kind(said.kind, manifest)


def fits(manifest: Manifest, identities: Mapping[str, Identity | None]) -> bool:
    """Whether a manifest is that of these shards: more of them say the same of themselves than not."""
    slots = {slot.file: slot for slot in slots_of(manifest)}
    kind = [
        file in slots and same_kind(said.kind, manifest) and (said.samples, said.attachments) != (0, 0)
        and any(agrees(manifest, slot, said) for slot in slots.values())
        for file, said in identities.items()
        if said is not None
    ]  # fmt: skip
    return not kind or 2 * sum(kind) > len(kind)


def cases_by_manifest(old: Old, found: Mapping[str, Examined]) -> list[Case]:
    """The shards of a dataset whose manifest is there."""
    manifest = old.manifest
    assert manifest is not None
    current = {entry.file: entry for entry in manifest.shards}
    kept = [range(start, stop) for start, stop in manifest.kept]
    cases = []
    attachment = ATTACHMENT_BIT
    for slot in slots_of(manifest):
        numbers = range(slot.first, slot.first + slot.samples)
        now = current.get(slot.file)
        expected = Expected(
            file=slot.file,
            numbers=numbers,
            attachments=range(attachment, attachment + slot.attachments),
            origin=slot,
            current=now,
            gone=frozenset(n for n in numbers if not any(n in part for part in kept))
            if manifest.dropped
            else frozenset(),
            gone_attachments=slot.attachments - (now.attachments if now is not None else 0),
        )
        attachment += slot.attachments
        shard = found.get(slot.file)
        cases.append(Case(expected, shard, shard is not None and not _prove(shard, expected, old)))
    return cases


def _prove(shard: Examined, expected: Expected, old: Old) -> bool:
    """Whether a shard's records are those that were packed; a sample that is another counts as damaged.

    Gives False where nothing tells.
    """
    entries = [entry for entry in (expected.origin, expected.current) if entry is not None]
    known = [entry for entry in entries if entry.records_xxh3]
    if shard.xxh3_128 in [entry.xxh3_128 for entry in known] or shard.records_xxh3 in [e.records_xxh3 for e in known]:
        return True
    told = _prove_by_index(shard, expected, old.index)
    if told is None:  # nothing was ever known of it: it was lost when its dataset had no manifest
        return not known
    for key in expected.attachments:
        if shard.is_sound(key):
            error = DamageError(
                "an attachment of which nothing tells that it was packed", "a file as packed", kind="digest"
            )
            shard.damage[key] = Damaged(None, (error,))
    return True


def _prove_by_index(shard: Examined, expected: Expected, index: RowFile | None) -> bool | None:
    """Hold the headers of a shard's samples against the index. None where it knows none of them."""
    if index is None or not expected.numbers:
        return None
    rows = index.read(expected.numbers.start, expected.numbers.stop)
    heads = dict(zip(expected.numbers, rows["header_xxh3"].tolist(), strict=True))
    column = list(index.dtype.names or ()).index("header_xxh3")
    unknown = [number for number in shard.samples if not heads.get(number)]
    wrong = [n for n, sample in shard.samples.items() if n not in unknown and sample.row[column] != heads[n]]
    if not any(heads.values()):
        return None
    for number in (*wrong, *(unknown if len(wrong) + len(unknown) == len(shard.samples) else ())):
        error = DamageError("a record of another dataset", "the one by index.npy", kind="index")
        shard.damage[number] = Damaged(None, (error,))
        del shard.samples[number], shard.places[number]
    return True

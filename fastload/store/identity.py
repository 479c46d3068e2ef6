"""What each shard says of itself and of its dataset, so that the manifest can be rebuilt from shards alone.

It lies in the record with the key `INFO_KEY`, in the header's `meta`:

- `layout`, `options`, `schema`, `lossy`: as in the manifest
- `first`, `samples`: number of its first sample, and how many it holds
- `first_attachment`, `attachments`: the same of attachments, whose keys are their numbers with the top bit set
- `before`: name of the sample before its first (bytes, empty for none), so that a shard of another dataset is noticed
- `more`: whether another shard follows, so that a lost last shard is missed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastload.errors import SchemaError
from fastload.schema import Schema
from fastload.store.record import INFO_KEY, DamageError, encode_record

_TYPES: Mapping[str, type] = {
    "layout": str,
    "options": dict,
    "schema": list,
    "lossy": list,
    "first": int,
    "samples": int,
    "first_attachment": int,
    "attachments": int,
    "before": bytes,
    "more": bool,
}


@dataclass(frozen=True)
class Kind:
    """What all shards of a dataset have in common.

    Attributes:
        layout: the layout that the source was read with.
        options: the layout's options that shaped the data.
        schema: the fields of the samples.
        lossy: what was changed on request, one sentence each.
    """

    layout: str
    options: Mapping[str, Any]
    schema: Schema
    lossy: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What one shard says.

    Attributes:
        kind: what it has in common with the dataset's other shards.
        first: number of its first sample.
        samples: how many samples it holds.
        first_attachment: number of its first attachment.
        attachments: how many attachments it holds.
        before: name of the sample before its first; empty where there is none.
        more: whether another shard follows.
    """

    kind: Kind
    first: int
    samples: int
    first_attachment: int
    attachments: int
    before: bytes
    more: bool

    def record(self, buffer: bytearray | None = None) -> memoryview:
        """The bytes of the record that says it."""
        return encode_record(INFO_KEY, "", {}, meta=self.to_meta(), buffer=buffer)

    def to_meta(self) -> dict[str, Any]:
        """The record's `meta`."""
        return {
            "layout": self.kind.layout,
            "options": dict(self.kind.options),
            "schema": self.kind.schema.to_json(),
            "lossy": list(self.kind.lossy),
            "first": self.first,
            "samples": self.samples,
            "first_attachment": self.first_attachment,
            "attachments": self.attachments,
            "before": self.before,
            "more": self.more,
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Identity:
        """What a record's `meta` says. Raises `DamageError` for anything that `to_meta` does not give."""
        wrong = [name for name, kind in _TYPES.items() if type(meta.get(name)) is not kind]
        counts = [meta.get(name) for name, kind in _TYPES.items() if kind is int]
        if wrong or not all(isinstance(count, int) and 0 <= count < 2**63 for count in counts):
            found = f"an info record without, or with wrong, {', '.join(wrong) or 'counts'}"
            raise DamageError(found, f"{', '.join(_TYPES)}", kind="header")
        if not all(isinstance(text, str) for text in meta["lossy"]):
            raise DamageError("lossy that is not texts", "texts", kind="header")
        try:
            json.dumps(meta["options"])
            schema = Schema.from_json(meta["schema"])
        except (SchemaError, TypeError, ValueError, RecursionError) as error:
            found = f"a schema or options that cannot be ({error})"
            raise DamageError(found, "those of a dataset", kind="header") from error
        kind = Kind(meta["layout"], meta["options"], schema, tuple(meta["lossy"]))
        return cls(kind, *(meta[name] for name in list(_TYPES)[4:]))

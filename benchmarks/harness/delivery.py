"""What a contender delivers: consumed the same way for all, and digested to see that all deliver the same."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

Array = NDArray[Any]
PAGE_BYTES = 4096
OFFSET = "offset"
_OFFSET_IS = "(B,) integers, where each sample ends in the joined fields: the running sum of their sizes"
_MODULUS = 2**64


@dataclass(frozen=True)
class Delivery:
    """What batches hold.

    Attributes:
        fields: the arrays that count; what else a batch has is left alone.
        layout: how samples lie in a batch: "offset" (joined along the first dimension, `offset` (B,) their ends),
            "rows" (stacked: one row a sample) or "single" (a batch is one sample).
    """

    fields: tuple[str, ...]
    layout: Literal["offset", "rows", "single"]

    def arrays(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """The fields as arrays. Raises `ValueError` for one that is missing or not whole, `TypeError` for no batch."""
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch is {type(batch).__name__}; expected a dict (a mapping) of names to arrays or CPU tensors:"
                f" {_listed(self._names)}"
            )
        return {name: _array(batch, name) for name in self.fields}

    def count(self, batch: Mapping[str, Any]) -> int:
        """The number of samples in a batch."""
        if self.layout == "single":
            return 1
        return len(_ends(batch)) if self.layout == "offset" else len(batch[self.fields[0]])

    @property
    def _names(self) -> tuple[str, ...]:
        """What a batch has to have."""
        return (*self.fields, OFFSET) if self.layout == "offset" else self.fields

    def samples(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Array]]:
        """The samples of a batch, as views. Raises `ValueError` where it does not come apart into samples."""
        arrays = self.arrays(batch)
        for place in self._places(batch, arrays):
            yield {name: array[place] for name, array in arrays.items()}

    def _places(self, batch: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterable[Any]:
        if self.layout == "single":
            return [...]
        sizes = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        if self.layout == "rows":
            _check_sizes(sizes, self.count(batch), "one row a sample")
            return range(self.count(batch))
        ends = _ends(batch).tolist()
        if ends != sorted(ends) or min(ends, default=0) < 0:
            raise ValueError(f"{OFFSET!r}: found {ends[:8]}; expected {_OFFSET_IS}: they never fall")
        _check_sizes(sizes, ends[-1] if ends else 0, f"the last of {OFFSET!r}: {_OFFSET_IS}")
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _check_sizes(sizes: Mapping[str, int | None], expected: int, what: str) -> None:
    for name, size in sizes.items():
        if size != expected:
            found = "a single value" if size is None else f"{size:,} rows"
            raise ValueError(f"field {name!r}: found {found} in a batch; expected {expected:,}, {what}")


def _ends(batch: Mapping[str, Any]) -> Array:
    """Where each sample ends in the joined fields."""
    if OFFSET not in batch:
        raise ValueError(f"{OFFSET!r}: the batch has {_listed(batch)}; the peer has to add it: {_OFFSET_IS}")
    ends = np.asarray(batch[OFFSET])
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        raise ValueError(f"{OFFSET!r}: found {ends.dtype} of shape {ends.shape}; expected {_OFFSET_IS}")
    return ends


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _array(batch: Mapping[str, Any], name: str) -> Array:
    if name not in batch:
        raise ValueError(
            f"field {name!r}: the batch has {_listed(batch)}; expected this field too, as an array or a CPU tensor; the"
            " peer has to deliver it"
        )
    array = np.asarray(batch[name])
    if not array.flags.c_contiguous:
        raise ValueError(
            f"field {name!r}: not contiguous, strides {array.strides}; the peer has to deliver it whole"
            " (numpy.ascontiguousarray)"
        )
    return array


@dataclass(frozen=True)
class FieldContent:
    """One field of all samples: its dtype, its bytes, and the sum of its digests."""

    dtype: str
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Content:
    """All that was delivered, whatever the order of samples.

    Attributes:
        samples: number of samples.
        nbytes: bytes of all fields.
        digest: sum over samples of a digest of all fields, so that fields of other samples show.
        fields: each field by itself, to tell which one differs.
    """

    samples: int
    nbytes: int
    digest: str
    fields: Mapping[str, FieldContent]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Content:
        """The content out of its JSON values."""
        return cls(**{**values, "fields": {name: FieldContent(**each) for name, each in values["fields"].items()}})


class ContentSum:
    """Adds up samples to their content.

    Digests are summed, not xored: a sample delivered twice does not cancel out.
    """

    def __init__(self) -> None:
        self._samples = self._total = 0
        self._sums: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._dtypes: dict[str, set[str]] = {}

    def add(self, sample: Mapping[str, Array]) -> None:
        """Count one sample in."""
        whole = xxhash.xxh3_64()
        for name in sorted(sample):
            array = sample[name]
            digest = _digest(name, array)
            whole.update(digest.to_bytes(8, "big"))
            self._sums[name] = (self._sums.get(name, 0) + digest) % _MODULUS
            self._sizes[name] = self._sizes.get(name, 0) + array.nbytes
            self._dtypes.setdefault(name, set()).add(str(array.dtype))
        self._samples += 1
        self._total = (self._total + whole.intdigest()) % _MODULUS

    def content(self) -> Content:
        """What was added so far."""
        fields = {
            name: FieldContent(" and ".join(sorted(self._dtypes[name])), self._sizes[name], f"{total:016x}")
            for name, total in self._sums.items()
        }
        return Content(self._samples, sum(self._sizes.values()), f"{self._total:016x}", fields)


def content_of(samples: Iterable[Mapping[str, Array]]) -> Content:
    """The content of these samples."""
    total = ContentSum()
    for sample in samples:
        total.add(sample)
    return total.content()


def _digest(name: str, array: Array) -> int:
    digest = xxhash.xxh3_64(f"{name}/{array.dtype}/{array.shape}/".encode())
    digest.update(_bytes(array).data)
    return digest.intdigest()


def _bytes(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def explain_difference(found: Content, expected: Content) -> str | None:
    """In words, how what was delivered differs from what the reference delivers; None when it does not."""
    if found.samples != expected.samples:
        return f"{found.samples:,} samples; the reference delivers {expected.samples:,}"
    for name, field in expected.fields.items():
        other = found.fields.get(name)
        if other is None or (other.dtype, other.nbytes) != (field.dtype, field.nbytes):
            has = "missing" if other is None else f"{other.nbytes:,} bytes of {other.dtype}"
            return f"field {name!r}: {has}; the reference delivers {field.nbytes:,} bytes of {field.dtype}"
    wrong = [name for name, field in expected.fields.items() if found.fields[name].digest != field.digest]
    if wrong:
        return f"field {', '.join(map(repr, wrong))}: other values than the reference delivers"
    if found.digest != expected.digest:
        return "all fields are the reference's, but in other samples: they are joined wrongly"
    return None


class Consumer:
    """Takes batches as a training loop would: reads a byte of every page, so that nothing stays a promise.

    Attributes:
        samples: how many it was given.
        nbytes: their bytes.
        seconds: the time it took itself.
    """

    def __init__(self, delivery: Delivery, *, check: bool) -> None:
        self.samples = self.nbytes = 0
        self.seconds = 0.0
        self._delivery = delivery
        self._sum = ContentSum() if check else None

    def take(self, batch: Mapping[str, Any]) -> None:
        """Consume one batch. Raises `ValueError` when it is not what it should be."""
        start = time.perf_counter()
        for array in self._delivery.arrays(batch).values():
            touch(array)
            self.nbytes += array.nbytes
        self.samples += self._delivery.count(batch)
        if self._sum is not None:
            for sample in self._delivery.samples(batch):
                self._sum.add(sample)
        self.seconds += time.perf_counter() - start

    def content(self) -> Content | None:
        """What was delivered; None unless it was to be checked."""
        return None if self._sum is None else self._sum.content()


def touch(array: Array) -> int:
    """Read a byte of every page of the array's memory. Gives their sum."""
    data = array.reshape(-1).view(np.uint8)
    return int(data[::PAGE_BYTES].sum()) + int(data[-1]) if data.size else 0

"""Samples of different sizes joined to one batch: concatenated with offsets, or padded."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fastload.collation.batch import Array, Batch, as_array, common_device, fits, new_tensor, torch_dtype, write
from fastload.collation.samples import Sample, check_samples, describe, how_to_convert, list_first, who
from fastload.errors import CollateError, UsageError
from fastload.schema import RESERVED_NAMES, Schema

__all__ = ["PER_POINT", "Batch", "Collate", "collate"]

PER_POINT = frozenset(
    {
        "points",
        "semantic",
        "instance",
        "coord",
        "color",
        "normal",
        "intensity",
        "strength",
        "segment",
        "time_lag",
    }
)
"""Fields that are per point where neither `per_point=` nor a schema says so."""
LABELS = frozenset({"semantic", "instance", "segment"})
"""Per-point fields that are padded with the ignore index."""
LAYOUTS = ("concat", "padded")
Role = Literal["points", "list", "stack"]


@runtime_checkable
class DescribedDataset(Protocol):
    """What `Collate.bind` takes from a dataset; `PackedDataset` has both."""

    @property
    def schema(self) -> Schema:
        """The fields of its samples."""

    @property
    def ignore_index(self) -> int | None:
        """What its label map makes of unknown labels; None: nothing."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Collate:
    """Joins a list of samples (dicts) to a `Batch`; a `collate_fn` for torch's DataLoader too.

    Per-point fields are concatenated, with `offset` (B,) int64, the cumulative ends; or padded to
    (B, max N, ...), with `length` (B,) int64 and `valid` (B, max N) bool. Fields in `lists` become lists of B
    tensors. All others are stacked. Which is which hangs on names, never on shapes, so that a batch of one
    has the layout of any other. uint16 becomes int32, uint32 and uint64 int64; other dtypes stay. Values
    are copied once, and leave the autograd graph behind.

    Padding is zeros, but that of labels (semantic, instance, segment) is the ignore index once it is known:
    `Collate(layout="padded").bind(dataset)` takes it, and the schema, from the dataset.

    Attributes:
        layout: "concat" or "padded".
        batch_index: whether to add `batch_index` (sum N,) int64, each point's sample; for "concat" only.
        per_point: names of the per-point fields; None: as the schema says, and without one `PER_POINT`.
        lists: names of fields that become lists, beside the schema's other ragged groups.
        schema: the fields of the data set, set by `bind`.
        ignore_index: what labels are padded with (None: 0), set by `bind`.

    Raises:
        UsageError: options that are unknown or contradict each other.
        CollateError: when called, samples that cannot be joined, or names that neither they nor the schema have.
    """

    layout: Literal["concat", "padded"] = "concat"
    batch_index: bool = False
    per_point: tuple[str, ...] | None = None
    lists: tuple[str, ...] = ()
    schema: Schema | None = None
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"layout: found {self.layout!r}; expected one of {', '.join(map(repr, LAYOUTS))}")
        if self.batch_index and self.layout == "padded":
            raise UsageError("batch_index=True with layout='padded': there each row is one sample; leave it out")
        if self.per_point is not None:
            object.__setattr__(self, "per_point", _names("per_point", self.per_point))
        object.__setattr__(self, "lists", _names("lists", self.lists))
        both = [name for name in self.lists if name in (self.per_point or ())]
        if both:
            raise UsageError(f"{both[0]!r} is in per_point and in lists; expected in one of them; take it out")

    def bind(self, schema: Schema | DescribedDataset, *, ignore_index: int | None = None) -> Collate:
        """The same, but for a data set with this schema and this label for ignored points.

        Args:
            schema: the fields; or a dataset, of which its `schema` is taken and its `ignore_index`.
            ignore_index: what labels are padded with; goes before that of a dataset.

        Raises:
            UsageError: neither a `Schema` nor a dataset that has one.
        """
        if isinstance(schema, Schema):
            return dataclasses.replace(self, schema=schema, ignore_index=ignore_index)
        if not isinstance(schema, DescribedDataset) or not isinstance(schema.schema, Schema):
            raise UsageError(
                f"bind: found {describe(schema)}; expected a PackedDataset (torch's Subset keeps it as .dataset),"
                " or a Schema"
            )
        own = schema.ignore_index if ignore_index is None else ignore_index
        return dataclasses.replace(self, schema=schema.schema, ignore_index=own)

    def __call__(self, samples: Iterable[Sample]) -> Batch:
        """The samples joined to one batch."""
        # The caller's grad and inference modes must not show in the tensors: a worker does not have them.
        with torch.inference_mode(False), torch.no_grad():
            found = check_samples(samples)
            self._check_names(found[0])
            try:
                return self._join(found)
            except CollateError as error:
                unknown = self._unknown_names(found[0])
                if not unknown:
                    raise
                raise CollateError("; ".join([str(error), *unknown])) from error

    def _check_names(self, sample: Sample) -> None:
        """Refuse names that are in neither the schema nor the samples: mistyped ones would change the batch's form.

        Without a schema such a name may be that of a field that other samples have.
        """
        if self.schema is None:
            return
        unknown = self._unknown_names(sample)
        if unknown:
            raise CollateError(
                f"{'; '.join(unknown)}; expected names of fields that the samples or the dataset have; correct them,"
                " or use a Collate without them here"
            )

    def _unknown_names(self, sample: Sample) -> list[str]:
        """For each option with names that neither the sample nor the schema has, a sentence that says so."""
        in_schema = () if self.schema is None else self.schema.names
        fields = [name for name in sample if name not in RESERVED_NAMES]
        lines = []
        for option, names in (("per_point", self.per_point or ()), ("lists", self.lists)):
            unknown = [name for name in names if name not in sample and name not in in_schema]
            if unknown:
                meant = difflib.get_close_matches(unknown[0], [*fields, *in_schema], 1)
                lines.append(
                    f"{option} names {', '.join(map(repr, unknown))}, which the samples lack; they have"
                    f" {', '.join(fields) or 'no fields'}{f' (did you mean {meant[0]!r}?)' if meant else ''}"
                )
        return lines

    def _join(self, samples: list[Sample]) -> Batch:
        points = {name: self._arrays(name, samples) for name in samples[0] if self._role(name) == "points"}
        counts = [self._count_points(points, samples, i) for i in range(len(samples))] if points else []
        batch = Batch()
        for name in samples[0]:
            if name in points:
                batch[name] = self._join_points(name, points[name], counts, samples)
            else:
                batch[name] = self._join_values(name, samples)
        if points:
            batch.update(self._describe_points(counts))
        return batch

    def _join_values(self, name: str, samples: list[Sample]) -> Any:
        values = [sample[name] for sample in samples]
        if name == "name":
            return _join_names(values)
        if name == "index":
            return _join_indices(values)
        if self._role(name) == "list":
            return [self._as_tensor(name, value, samples, i) for i, value in enumerate(values)]
        if all(isinstance(value, (str, bytes)) for value in values):
            return values
        return self._stack(name, self._arrays(name, samples), samples)

    def _role(self, name: str) -> Role:
        if name in RESERVED_NAMES:
            return "stack"
        if name in self.lists:
            return "list"
        if name in (self._default_points(name) if self.per_point is None else self.per_point):
            return "points"
        if self.schema is not None and name in self.schema:
            field = self.schema[name]
            ragged = field.rows is not None and not field.per_point
            return "list" if ragged or field.kind in ("json", "bytes") else "stack"
        return "stack"

    def _default_points(self, name: str) -> Sequence[str] | frozenset[str]:
        if self.schema is None or name not in self.schema:
            return PER_POINT
        return (name,) if self.schema[name].per_point else ()

    def _arrays(self, name: str, samples: list[Sample]) -> list[Array]:
        """The field's values as arrays of one dtype."""
        arrays = [self._as_array(name, sample[name], samples, i) for i, sample in enumerate(samples)]
        dtypes = [torch_dtype(array) for array in arrays]
        if len(set(dtypes)) > 1:
            raise CollateError(
                f"field {name!r}: dtypes differ: {list_first(dtypes, samples)}; expected one dtype; convert"
                " the values in the transform (.astype), or set the dataset's dtypes="
            )
        return arrays

    def _as_array(self, name: str, value: object, samples: list[Sample], i: int) -> Array:
        array = as_array(value)
        if array is None:
            raise CollateError(
                f"field {name!r}: {who(samples, i)} has {describe(value)}; expected an array of numbers or bools,"
                f" a tensor, a number or text; {how_to_convert(value)}, or keep it as it is:"
                f" {self._line(samples, name, 'list')}"
            )
        if not fits(array):
            raise CollateError(
                f"field {name!r}: {who(samples, i)} has uint64 values beyond int64; expected values that"
                " int64 holds, as torch hardly computes with uint64; convert them in the transform"
            )
        return array

    def _as_tensor(self, name: str, value: object, samples: list[Sample], i: int) -> Any:
        if as_array(value) is None:
            return value
        array = self._as_array(name, value, samples, i)
        return _new_from(array)

    def _count_points(self, points: dict[str, list[Array]], samples: list[Sample], i: int) -> int:
        """The number of points of sample `i`, which its per-point fields must agree on."""
        for name, arrays in points.items():
            if arrays[i].ndim == 0:
                raise CollateError(
                    f"field {name!r}: {who(samples, i)} has a single value; expected one for each point; if"
                    f" the field is not per point: {self._line(samples, name, 'stack')}"
                )
        counts = {name: len(arrays[i]) for name, arrays in points.items()}
        expected = counts.get("points", next(iter(counts.values())))
        other = next((name for name, count in counts.items() if count != expected), None)
        if other is not None:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise CollateError(
                f"{who(samples, i)}: the per-point fields have different numbers of points: {listed};"
                " expected one number; a transform that drops or adds points must do so in all of them; if"
                f" {other!r} is not per point: {self._line(samples, other, 'stack')}"
                f" or {self._line(samples, other, 'list')}"
            )
        return expected

    def _join_points(self, name: str, arrays: list[Array], counts: list[int], samples: list[Sample]) -> Tensor:
        rows = [tuple(array.shape[1:]) for array in arrays]
        if len(set(rows)) > 1:
            shapes = [tuple(array.shape) for array in arrays]
            raise CollateError(
                f"field {name!r}: shapes differ after the first dimension: {list_first(shapes, samples)};"
                " per-point fields (per_point=) are joined along the first and must agree in the others; give"
                f" all samples the same columns, or take a list (lists=): {self._line(samples, name, 'list')}"
            )
        dtype, device = torch_dtype(arrays[0]), common_device(arrays)
        if self.layout == "concat":
            return _concatenate(arrays, new_tensor((sum(counts), *rows[0]), dtype, device))
        target = new_tensor((len(counts), max(counts), *rows[0]), dtype, device)
        return _pad(arrays, target, self._fill(name, dtype))

    def _stack(self, name: str, arrays: list[Array], samples: list[Sample]) -> Tensor:
        shapes = [tuple(array.shape) for array in arrays]
        if len(set(shapes)) > 1:
            raise CollateError(
                f"field {name!r}: shapes differ: {list_first(shapes, samples)}; expected equal shapes, to"
                f" stack them; if it has one row for each point: {self._line(samples, name, 'points')};"
                f" if not, take a list of tensors: {self._line(samples, name, 'list')}"
            )
        target = new_tensor((len(arrays), *shapes[0]), torch_dtype(arrays[0]), common_device(arrays))
        write(target, ((slice(i, i + 1), array) for i, array in enumerate(arrays)))
        return target

    def _fill(self, name: str, dtype: torch.dtype) -> int:
        """What a field is padded with."""
        if name not in LABELS or self.ignore_index is None:
            return 0
        integer = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        if integer and not torch.iinfo(dtype).min <= self.ignore_index <= torch.iinfo(dtype).max:
            raise CollateError(
                f"field {name!r}: found ignore_index {self.ignore_index}, with which {dtype} cannot be"
                " padded; expected one that fits; choose another ignore_index, or convert the labels"
            )
        return self.ignore_index

    def _describe_points(self, counts: list[int]) -> dict[str, Tensor]:
        """Where each sample's points are in the batch."""
        length = np.asarray(counts, np.int64)
        if self.layout == "padded":
            valid = np.arange(max(counts)) < length[:, None]
            return {"length": _new_from(length), "valid": _new_from(valid)}
        described = {"offset": _new_from(np.cumsum(length))}
        if self.batch_index:
            described["batch_index"] = _new_from(np.repeat(np.arange(len(counts)), length))
        return described

    def _line(self, samples: list[Sample], name: str, role: Role) -> str:
        """The argument that gives a field another role and leaves all others theirs, ready to paste."""
        names = [
            *(self.per_point or ()),
            *self.lists,
            *(key for key in samples[0] if key not in RESERVED_NAMES),
        ]
        roles = {key: self._role(key) for key in names} | {name: role}
        points = tuple(key for key, chosen in roles.items() if chosen == "points")
        keep_default = self.per_point is None and self.schema is None and role == "list"
        changed = Collate(
            layout=self.layout,
            batch_index=self.batch_index,
            per_point=None if keep_default else points,
            lists=tuple(key for key, chosen in roles.items() if chosen == "list"),
        )
        return f"collate_fn=fastload.{changed!r}"

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "schema" and getattr(self, field.name) != field.default
        ]
        shown += [f"schema=<{', '.join(self.schema.names)}>"] if self.schema is not None else []
        return f"Collate({', '.join(shown)})"


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UsageError(f"{option}: found the text {names!r}; expected several names: {option}=({names!r},)")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or name in RESERVED_NAMES:
            raise UsageError(
                f"{option}: found {name!r}; expected names of fields; none of"
                f" {', '.join(sorted(RESERVED_NAMES))} is one"
            )
    return found


def _join_names(values: list[Any]) -> list[str]:
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise CollateError(f"sample {i} of the batch: name is {describe(value)}; expected text")
    return [str(value) for value in values]


def _join_indices(values: list[Any]) -> Tensor:
    try:
        return _new_from(np.asarray([operator.index(value) for value in values], np.int64))
    except (TypeError, OverflowError) as error:
        raise CollateError(f"index: found {', '.join(map(describe, values))}; expected one integer each") from error


def _concatenate(arrays: list[Array], target: Tensor) -> Tensor:
    ends = itertools.accumulate(len(array) for array in arrays)
    write(target, ((slice(end - len(array), end), array) for end, array in zip(ends, arrays, strict=True)))
    return target


def _pad(arrays: list[Array], target: Tensor, fill: int) -> Tensor:
    rest = np.asarray(fill)
    write(target, (((i, slice(0, len(array))), array) for i, array in enumerate(arrays)))
    write(target, (((i, slice(len(array), None)), rest) for i, array in enumerate(arrays)))
    return target


def _new_from(array: Array) -> Tensor:
    tensor = new_tensor(array.shape, torch_dtype(array), common_device([array]))
    write(tensor, [(..., array)])
    return tensor


collate = Collate()
"""Joins samples by the standard names."""

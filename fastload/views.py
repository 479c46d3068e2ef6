"""What a dataset makes of stored arrays: which fields, which columns, which dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import SampleError, UsageError
from fastload.schema import Schema


@dataclass(frozen=True)
class View:
    """A selection of fields and columns, and conversions.

    Attributes:
        names: the fields to read; None for all.
        columns: names of the columns to keep, by field.
        dtypes: dtype to convert to, by field.
    """

    names: tuple[str, ...] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fields: Sequence[str] | None,
        columns: Mapping[str, Sequence[str]] | None,
        dtypes: Mapping[str, Any] | None,
    ) -> View:
        """The view that these arguments of a dataset describe. Raises `UsageError` for wrong ones."""
        if isinstance(fields, str):
            raise UsageError(f"fields={fields!r} is text; give a list of names: fields=[{fields!r}]")
        for argument, value in (("columns", columns), ("dtypes", dtypes)):
            if value is not None and not isinstance(value, Mapping):
                example = '{"points": ("x", "y")}' if argument == "columns" else '{"points": "float16"}'
                raise UsageError(f"{argument}={value!r}: give a dict by field: {argument}={example}")
        if any(isinstance(names, str) for names in (columns or {}).values()):
            raise UsageError(f'columns={columns!r}: give a tuple of names a field: columns={{"points": ("x", "y")}}')
        return cls(
            None if fields is None else tuple(fields),
            {name: tuple(names) for name, names in (columns or {}).items()},
            {name: _numeric_dtype(name, dtype) for name, dtype in (dtypes or {}).items()},
        )

    def positions(self, schema: Schema) -> dict[str, list[int]]:
        """Positions of the columns to keep, by field.

        Raises:
            UsageError: something that the schema lacks, or a conversion that would lose what the values mean.
        """
        for argument, names in (("fields", self.names or ()), ("columns", self.columns), ("dtypes", self.dtypes)):
            for name in names:
                if name not in schema:
                    known = ", ".join(schema.names)
                    raise UsageError(f"{argument}: no field {name!r} in this dataset; it has {known}")
        for name, dtype in self.dtypes.items():
            _check_conversion(name, np.dtype(schema[name].dtype or "uint8"), dtype)  # "uint8": encoded bytes
        for name, wanted in self.columns.items():
            known_columns = schema[name].columns
            lacking = [column for column in wanted if column not in known_columns]
            if lacking or not wanted:
                has = ", ".join(known_columns) or "no named columns"
                raise UsageError(f"columns: field {name!r} has {has}; asked for {', '.join(wanted) or 'none'}")
        return {
            name: [schema[name].columns.index(column) for column in wanted] for name, wanted in self.columns.items()
        }

    def require(self, present: Sequence[str], where: str) -> None:
        """See that a sample has every field asked for by name. Raises `SampleError` naming what it lacks."""
        lacking = next((name for name in self.names or () if name not in present), None)
        if lacking is not None:
            has = ", ".join(present) or "no fields at all"
            raise SampleError(
                f"{where} has no field {lacking!r} (it has {has}); choose a split whose samples have it, leave"
                f" {lacking!r} out of fields=, or take the samples that have it: .info(number).fields tells, .subset()"
                " takes"
            )

    def apply(
        self, arrays: Mapping[str, NDArray[Any]], positions: Mapping[str, list[int]], where: str
    ) -> dict[str, Any]:
        """The arrays with columns picked and dtypes converted; fresh ones, in the order asked for.

        Raises:
            SampleError: integers that the dtype asked for does not hold; `where` names the sample.
        """
        sample: dict[str, Any] = {}
        for name in self.names if self.names is not None else arrays:
            array = arrays[name]
            if name in positions:
                array = np.ascontiguousarray(array[..., positions[name]])
            if name in self.dtypes:
                _check_range(array, self.dtypes[name], f"{where}, field {name}")
                array = array.astype(self.dtypes[name], copy=False)
            sample[name] = array
        return sample


def _numeric_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"dtypes: field {name!r}: {dtype!r} is not a numpy dtype, such as 'float16'") from error
    if found.kind not in "biufc":
        raise UsageError(f"dtypes: field {name!r}: {found} is not a dtype of numbers, such as 'float16'")
    return found


def _check_conversion(name: str, stored: np.dtype[Any], wanted: np.dtype[Any]) -> None:
    """Floats may become coarser floats; nothing becomes a kind of number that has no place for its values."""
    loses = {"b": "iufc", "i": "fc", "u": "fc", "f": "c"}.get(wanted.kind, "")
    if stored.kind in loses:
        raise UsageError(
            f"dtypes: field {name!r} is {stored}, which {wanted} would change in meaning (fractions, NaN, numbers"
            f" other than 0 and 1, or imaginary parts are lost); convert it as you mean it in transform="
        )


def _check_range(array: NDArray[Any], wanted: np.dtype[Any], where: str) -> None:
    """See that integers which are made narrower, or floats, keep their values."""
    if array.dtype.kind not in "iu" or array.size == 0:
        return
    low, high = _exact_range(wanted)
    if low <= np.iinfo(array.dtype).min and np.iinfo(array.dtype).max <= high:
        return
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise SampleError(
                f"{where}: found {value}, which {wanted} ({low} to {high}) does not hold exactly; choose a wider dtype"
                " in dtypes=, or leave the field as it is stored"
            )


def _exact_range(wanted: np.dtype[Any]) -> tuple[int, int]:
    """The integers from the first to the second are all kept as they are by this dtype."""
    if wanted.kind in "iu":
        return int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)
    high = 2 ** (np.finfo(wanted).nmant + 1)
    return -high, high

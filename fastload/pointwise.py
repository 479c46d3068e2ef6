"""Values for the points of samples, as users have them (numpy, torch, lists), as one numpy array a sample.

torch is not imported: a tensor is known by its methods.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import LabelError, UsageError
from fastload.schema import Problem
from fastload.units import brief, count_of

_MAX_NAMES = 3
_MAX_EXAMPLES = 3
FORMS = "one array a sample (a list), all one after the other (sum N,), or padded (B, max N)"
COUNT_FIX = (
    "predict for every point of the stored scan; where points were filtered out or voxelised, carry the labels"
    " back: full[mask] = labels, or labels[inverse]"
)


@dataclass(frozen=True)
class Scan:
    """A sample whose points values are for.

    Attributes:
        name: its name.
        points: how many it has.
        path: the file that the values go into, for messages.
    """

    name: str
    points: int
    path: str

    def problem(self, problem: Problem) -> Problem:
        """A problem of its values, with its name and path."""
        return replace(problem, sample=self.name, path=self.path)


Values = NDArray[Any] | Problem
"""The values of one sample, (N,) integers, or what is wrong with them."""


def sample_numbers(index: Any) -> tuple[list[int], bool]:
    """The sample numbers in `index`, and whether it holds many (even if one or none) or is a lone number.

    Raises:
        UsageError: anything but integers; bools are none.
    """
    array = None if _holds_bool(index) else _to_array(index)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim > 1:
        raise UsageError(f"index: found {brief(index)}; expected a sample's number, or (B,) integers: batch['index']")
    return array.reshape(-1).tolist(), array.ndim == 1


def values_by_sample(
    values: Any, field: str, scans: Sequence[Scan], *, lone: int | None, scalar: bool = False
) -> list[Values]:
    """The values of each sample.

    Args:
        values: (N,) integers for a lone sample; for several any of `FORMS`.
        field: what they are called in messages.
        scans: the samples.
        lone: the number of the one sample that was asked for; None where several were, even if these are one or none.
        scalar: whether one number for all points is fine too.

    Raises:
        UsageError: a list of another length.
        LabelError: one array that cannot be taken apart; which sample is wrong is not known then.
    """
    if lone is not None and _holds_arrays(values):
        return [_no_list(values, field, scan, lone) for scan in scans]
    if lone is None and _is_list_of_arrays(values):
        if len(values) != len(scans):
            found = f"{count_of(len(values), 'array')} for {count_of(len(scans), 'sample')}"
            raise UsageError(f"{field}: {found}; give one array a sample")
        wholes = [_to_integers(part, field) for part in values]
        return [_fitting(whole, field, scan) for whole, scan in zip(wholes, scans, strict=True)]
    whole = _to_integers(values, field)
    if isinstance(whole, Problem):
        raise LabelError(f"{replace(whole, sample=_names(scans))}; nothing was written")
    if scalar and whole.ndim == 0:
        return [np.broadcast_to(whole, (scan.points,)) for scan in scans]
    if lone is not None or (len(scans) == 1 and whole.ndim == 1):
        return [_fitting(whole, field, scan, lone) for scan in scans]
    return _taken_apart(whole, field, scans)


def _taken_apart(whole: NDArray[Any], field: str, scans: Sequence[Scan]) -> list[Values]:
    ends = list(itertools.accumulate((scan.points for scan in scans), initial=0))
    if whole.shape == (ends[-1],):
        return [whole[start:stop] for start, stop in itertools.pairwise(ends)]
    if whole.shape == (len(scans), max((scan.points for scan in scans), default=0)):
        return [row[: scan.points] for row, scan in zip(whole, scans, strict=True)]
    raise LabelError(f"{_misfit(whole, field, scans)}; nothing was written")


def _to_integers(values: Any, field: str) -> NDArray[Any] | Problem:
    """The values as integers of any shape, or what is wrong with them."""
    if isinstance(values, list | tuple) and _holds_bool(values):
        return Problem(None, None, field, "bool values among the numbers", "integers, (N,)", "give integers")
    array = _to_array(values)
    if isinstance(array, str):
        return Problem(None, None, field, array, "an array of integers", "convert it first")
    if array.dtype.kind in "iu":
        return array
    dtype = str(getattr(values, "dtype", array.dtype)).removeprefix("torch.")
    found = f"{dtype} values of shape {array.shape}{_examples(array)}"
    return Problem(None, None, field, found, "integers, (N,)", _advice(array))


def _to_array(values: Any) -> NDArray[Any] | str:
    """The values as a numpy array, without a copy where they are one already; why not, where they are none."""
    if isinstance(values, np.ma.MaskedArray):
        return "a masked array, whose hidden values would be taken too"
    if isinstance(values, list | tuple) and not values:
        return np.empty(0, np.int64)
    try:
        if hasattr(values, "detach"):
            tensor = values.detach().cpu()
            # numpy has no bfloat16; floats are only looked at to say what they are.
            return np.asarray(tensor.float() if tensor.is_floating_point() else tensor.numpy())
        return np.asarray(values)
    except Exception as error:  # whatever an __array__ of the user's raises
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        return f"{type(values).__name__} that is no array of numbers ({why})"


def _advice(array: NDArray[Any]) -> str:
    if array.dtype.kind != "f":
        return "give integers"
    if array.ndim > 1:
        return "scores of the classes? take each point's best class first: .argmax(-1)"
    convert = "convert them: .astype(np.int64), in torch .long()"
    return f"mend what made them, then {convert}" if _fractions(array).size else convert


def _examples(array: NDArray[Any]) -> str:
    """Some of the values where they are floats: those that are no whole numbers first."""
    if array.dtype.kind != "f" or not array.size:
        return ""
    odd = _fractions(array)
    shown = (odd if odd.size else array).reshape(-1)[:_MAX_EXAMPLES]
    return f" such as {', '.join(f'{value:g}' for value in shown.tolist())}"


def _fractions(array: NDArray[Any]) -> NDArray[Any]:
    """The floats that are no whole numbers, NaN among them."""
    return np.asarray(array[~(np.isfinite(array) & (array == np.rint(array)))])


def _fitting(array: NDArray[Any] | Problem, field: str, scan: Scan, lone: int | None = None) -> Values:
    """The values, or what is wrong with them, their shape among it."""
    if isinstance(array, Problem):
        return scan.problem(array)
    if array.ndim != 1:
        found = f"values of shape {array.shape}"
        fix = "give one integer a point"
        if lone is not None and array.ndim == 2 and len(array) == 1:
            fix += f", or the number as one of many too: index=[{lone}]"
        return scan.problem(Problem(None, None, field, found, f"({scan.points},)", fix))
    if len(array) != scan.points:
        found = f"{len(array):,} labels for {scan.points:,} points"
        return scan.problem(Problem(None, None, field, found, "one a point", COUNT_FIX, "count"))
    return array


def _no_list(values: Sequence[Any], field: str, scan: Scan, lone: int) -> Problem:
    """What is wrong with a list of arrays for one sample."""
    found = f"a list of {count_of(len(values), 'array')} for a lone sample number"
    one = f", or the number in a list too: index=[{lone}]" if len(values) == 1 else ""
    return scan.problem(Problem(None, None, field, found, f"({scan.points},)", f"give one array of integers{one}"))


def _misfit(whole: NDArray[Any], field: str, scans: Sequence[Scan]) -> Problem:
    """What is wrong with an array of the labels of several samples."""
    total = sum(scan.points for scan in scans)
    listed = ", ".join(f"{scan.name} {scan.points:,}" for scan in scans[:_MAX_NAMES])
    more = f" and {len(scans) - _MAX_NAMES:,} more" if len(scans) > _MAX_NAMES else ""
    found = f"{len(whole):,} labels" if whole.ndim == 1 else f"values of shape {whole.shape}"
    found += f" for {total:,} points in {len(scans):,} samples ({listed}{more})"
    expected = f"({total},), or padded ({len(scans)}, {max(scan.points for scan in scans)})" if scans else "none"
    fix = f"{COUNT_FIX}; a list of one array a sample tells which of them does not fit"
    return Problem(None, None, field, found, expected, fix, "count")


def _is_list_of_arrays(values: Any) -> bool:
    if not isinstance(values, list | tuple):
        return False
    return not values or not (isinstance(values[0], numbers.Number) or getattr(values[0], "ndim", None) == 0)


def _holds_arrays(values: Any) -> bool:
    """Whether the values are a list that begins with an array, or with a list."""
    if not isinstance(values, list | tuple) or not values:
        return False
    return isinstance(values[0], list | tuple) or getattr(values[0], "ndim", 0) > 0


def _holds_bool(values: Any) -> bool:
    """Whether a bool is among the numbers; numpy makes an integer of one that stands beside integers."""
    items = values if isinstance(values, list | tuple) else [values]
    kinds = set(map(type, items))
    if kinds <= {int, float}:
        return False
    return not kinds.isdisjoint({bool, np.bool_}) or any(_is_bool(item) for item in items)


def _is_bool(item: Any) -> bool:
    """Whether it is a bool in an array or tensor without dimensions."""
    return getattr(item, "ndim", None) == 0 and str(getattr(item, "dtype", "")) in ("bool", "torch.bool")


def _names(scans: Sequence[Scan]) -> str:
    listed = ", ".join(scan.name for scan in scans[:_MAX_NAMES])
    return f"{listed} and {len(scans) - _MAX_NAMES:,} more" if len(scans) > _MAX_NAMES else listed

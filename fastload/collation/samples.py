"""Samples on their way into a batch: what every batch asks of them, and how messages name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from fastload.errors import CollateError
from fastload.schema import RESERVED_NAMES

BATCH_NAMES = RESERVED_NAMES - {"name", "index"}
"""Names that a batch adds: no sample may bring them."""
MAX_SAMPLES_IN_MESSAGE = 8
MAX_VALUE_LETTERS = 40

Sample: TypeAlias = Mapping[str, Any]


def check_samples(samples: Iterable[Sample]) -> list[Sample]:
    """The samples as a list: dicts with the same fields, none of them a name that only a batch has."""
    if isinstance(samples, Mapping):
        raise CollateError("found one sample (a dict); expected a list of samples: collate([sample])")
    try:
        each = iter(samples)
    except TypeError as error:
        raise CollateError(f"found {describe(samples)}; expected a list of samples: collate([sample])") from error
    found = list(each)
    if not found:
        raise CollateError("found no samples; expected at least one; a batch sampler must not give empty batches")
    for i, sample in enumerate(found):
        if not isinstance(sample, Mapping):
            raise CollateError(_describe_no_sample(i, sample))
        reserved = sorted(BATCH_NAMES.intersection(sample))
        if reserved:
            raise CollateError(
                f"{who(found, i)} has a field {reserved[0]!r}; the batch itself uses the names"
                f" {', '.join(sorted(BATCH_NAMES))}; rename the field in the transform"
            )
    _check_same_fields(found)
    return found


def _check_same_fields(samples: list[Sample]) -> None:
    if all(sample.keys() == samples[0].keys() for sample in samples):
        return
    names = dict.fromkeys(name for sample in samples for name in sample)
    for name in names:
        lacking = [i for i, sample in enumerate(samples) if name not in sample]
        if not lacking:
            continue
        kept = tuple(key for key in names if key not in RESERVED_NAMES and all(key in sample for sample in samples))
        read = f"read only what all have (PackedDataset(..., fields={kept!r}))" if kept else "leave it out"
        raise CollateError(
            f"field {name!r}: only {len(samples) - len(lacking)} of {len(samples)} samples have it, not"
            f" {_list_samples(samples, lacking)}; expected it in all or in none; {read}, or give each sample one in"
            f" the transform (an empty array, for example, with Collate(lists=({name!r},)))"
        )


def _describe_no_sample(i: int, sample: object) -> str:
    if sample is None:
        return (
            f"sample {i} of the batch is None; expected a dict of fields; leave bad samples out beforehand"
            " (dataset.subset(indices)), or let the transform return a sample or raise"
        )
    return (
        f"sample {i} of the batch is {describe(sample)}; expected a dict of fields; let the dataset or its"
        " transform return a dict, or use collate_fn=torch.utils.data.default_collate"
    )


def who(samples: list[Sample], i: int) -> str:
    """Sample `i`, by position and name."""
    name = samples[i].get("name")
    return f"sample {i} of the batch ({name!r})" if isinstance(name, str) else f"sample {i} of the batch"


def _list_samples(samples: list[Sample], positions: list[int]) -> str:
    listed = ", ".join(who(samples, i) for i in positions[:MAX_SAMPLES_IN_MESSAGE])
    rest = len(positions) - MAX_SAMPLES_IN_MESSAGE
    return f"{listed} and {rest} more" if rest > 0 else listed


def list_first(values: Sequence[Any], samples: list[Sample]) -> str:
    """Each different value with the first sample that has it."""
    first = {value: i for i, value in reversed(list(enumerate(values)))}
    shown = sorted(first.items(), key=lambda item: item[1])[:MAX_SAMPLES_IN_MESSAGE]
    listed = ", ".join(f"{who(samples, i)} has {value}" for value, i in shown)
    return f"{listed} and {len(first) - len(shown)} more" if len(first) > len(shown) else listed


def describe(value: object) -> str:
    """What a value is, in a few words."""
    if isinstance(value, np.ma.MaskedArray):
        return f"a masked array of {value.dtype}"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"an array of {_shorten(str(value.dtype))}"
    if isinstance(value, Tensor):
        return f"a tensor ({type(value).__name__}, {value.layout})"
    return "None" if value is None else f"{type(value).__name__} {_shorten(repr(value))}"


def how_to_convert(value: object) -> str:
    """How a transform makes numbers of a value that is none."""
    if isinstance(value, np.ma.MaskedArray):
        return "fill it first, as a batch has no place for its mask (.filled(0), or one field more with the mask)"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.names:
        return "make a plain array of it (numpy.lib.recfunctions.structured_to_unstructured) in the transform"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "mM":
        return "make numbers of it (.astype('int64')) in the transform"
    return "convert it in the transform"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE_LETTERS else text[: MAX_VALUE_LETTERS - 3] + "..."

"""`PackedDataset`: a packed dataset as a `torch.utils.data.Dataset`."""

from __future__ import annotations

import bisect
import copy
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch.utils.data
import xxhash
from numpy.typing import ArrayLike, NDArray

from fastload.collation.collate import Collate
from fastload.errors import DatasetError, LabelError, SampleError, UsageError
from fastload.labels import LabelMap
from fastload.schema import ROWS_POINTS, SampleInfo, Schema
from fastload.spawning import check_sendable
from fastload.store.listing import sample_info
from fastload.store.reader import CheckedOnce, Store, open_store
from fastload.views import View

Verify = Literal["once", "always", "never"]
LABEL_FIELD = "semantic"


class PackedDataset(torch.utils.data.Dataset[Any]):
    """Samples of a packed dataset, by number.

    Opens nothing until it is first used; pickles in a few hundred bytes (files are opened again where it is
    unpickled); safe across fork, spawn and forkserver, and from many threads at once.

    A sample is a plain dict of fresh numpy arrays that may be written to, dtypes as stored, and `name` (str)
    and `index` (int, its number in this dataset). A field that a sample lacks is absent.

    Args:
        root: the folder that `fastload pack` wrote.
        split: name of a split; None for all samples.
        fields: names of the fields to read; all by default. A sample that lacks one of them raises
            `SampleError`.
        columns: for array fields with named columns, which of them and in which order:
            `{"points": ("x", "y", "z")}`.
        label_map: "semantickitti", a YAML file in the upstream form, or a `LabelMap`; applied to `semantic`,
            which becomes int64.
        ignore_index: what labels that the map does not know become; None: they raise `LabelError`.
        dtypes: for fields by name the dtype that they are converted to: `{"points": "float16"}`. A sample with
            integers that the dtype does not hold raises `SampleError`.
        transform: called with each sample; what it gives is the sample.
        verify: when a record's checksums are verified: "once" (at its first read in a process), "always" or
            "never".

    Raises:
        UsageError: unknown split, field or column, a dtype that would lose what numbers mean (floats to
            integers, numbers to bools), or an argument of the wrong kind. Raised when the dataset is first used.
        DatasetNotFoundError, VersionError, CorruptError: the dataset cannot be opened.
        DatasetError: a subset whose dataset was packed anew.
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        *,
        fields: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        label_map: str | Path | LabelMap | None = None,
        ignore_index: int | None = None,
        dtypes: Mapping[str, Any] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        verify: Verify = "once",
    ) -> None:
        if verify not in ("once", "always", "never"):
            raise UsageError(f"verify={verify!r} is none of 'once', 'always', 'never'")
        if ignore_index is not None and label_map is None:
            raise UsageError(f"ignore_index={ignore_index} says what labels unknown to a map become; give label_map=")
        self.root = Path(os.path.abspath(root))  # a worker, or this process later on, may be in another folder
        self.split = split
        self.ignore_index = ignore_index
        self.transform = transform
        self.verify = verify
        self.label_map = None if label_map is None else LabelMap.load(label_map)
        self._view = View.of(fields, columns, dtypes)
        self._numbers: NDArray[np.int64] | None = None
        self._numbers_of = ""  # the fingerprint of the packed dataset whose samples they number
        self._opened: _Opened | None = None

    def __len__(self) -> int:
        return self._open().samples

    def __getitem__(self, index: int) -> Any:
        """The sample with this number, counted from the end when negative.

        Raises:
            IndexError: there is none.
            SampleError: it lacks a field that `fields` names, or has integers that its `dtypes` do not hold.
            LabelError: it has labels that the label map does not know.
            CorruptError: its record or shard is damaged.
        """
        opened = self._open()
        position = opened.position(index)
        sample = self._read(opened, position)
        return sample if self.transform is None else self._transformed(sample, sample["name"])

    def _transformed(self, sample: dict[str, Any], name: str) -> Any:
        assert self.transform is not None
        try:
            return self.transform(sample)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11 and newer
                error.add_note(f"in the transform, of sample {name} of {self.root}")
            raise

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples with these numbers, in this order."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    @property
    def schema(self) -> Schema:
        """The fields of the stored samples."""
        return self._open().store.manifest.schema

    @property
    def splits(self) -> dict[str, int]:
        """The number of samples of each split of the whole packed dataset."""
        manifest = self._open().store.manifest
        return {split: manifest.split_size(split) for split in manifest.splits}

    @property
    def names(self) -> Sequence[str]:
        """The samples' names, a lazy sequence."""
        return _LazyNames(self)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(n,) number of points of each sample, from the index; zeros where samples have no points."""
        opened = self._open()
        if ROWS_POINTS not in opened.store.manifest.schema.row_groups:
            return np.zeros(opened.samples, np.int64)
        return np.concatenate(
            [np.empty(0, np.int64), *(rows[f"rows_{ROWS_POINTS}"].astype(np.int64) for rows in opened.index_parts())]
        )

    @property
    def fingerprint(self) -> str:
        """A digest of which samples this dataset has in which order: equal data, split and subset, equal digest."""
        opened = self._open()
        digest = xxhash.xxh3_128(f"{opened.store.manifest.fingerprint}/{self.split}".encode("utf-8", "surrogateescape"))
        if self._numbers is not None:
            digest.update(f"/{len(self._numbers)}/".encode())
            digest.update(self._numbers.data)
        return digest.hexdigest()

    @property
    def collate(self) -> Collate:
        """A `Collate` that knows this dataset's schema and `ignore_index`: joins its samples, with offsets.

        Other forms are bound to the dataset in the same way: `Collate(layout="padded").bind(dataset)` pads labels
        with its `ignore_index`.
        """
        return Collate().bind(self)

    def find(self, name: str) -> int:
        """The number in this dataset of the sample called `name`. Raises `SampleError` when there is none."""
        opened = self._open()
        number = opened.store.names.find(name, self._name_ranges(opened))
        position = None if number is None else opened.position_of(number)
        if position is None:
            where = f"split {self.split!r} of {self.root}" if self.split else str(self.root)
            like = opened.store.names[opened.number(0)] if opened.samples else ""
            raise SampleError(f"{where}: no sample is called {name!r}; names look like {like!r}")
        return position

    def info(self, index: int) -> SampleInfo:
        """What is known of a sample without reading its data. Raises `IndexError` when there is none."""
        opened = self._open()
        position = opened.position(index)
        return sample_info(opened.store, opened.number(position), position)

    def subset(self, indices: ArrayLike) -> PackedDataset:
        """The samples with these numbers, in this order, as a dataset of the same kind.

        It is a subset of the dataset as it is packed now: it does not open another one that was packed to the
        same folder later on.

        Raises:
            UsageError: something else than numbers, or a number outside the dataset.
        """
        chosen = np.asarray(indices)
        if chosen.dtype == bool or (chosen.size and chosen.dtype.kind not in "iu") or chosen.ndim != 1:
            raise UsageError(f"subset: {chosen.dtype} {chosen.shape}; expected sample numbers, (n,) integers")
        opened = self._open()
        size = opened.samples
        if chosen.size and not -size <= int(chosen.min()) <= int(chosen.max()) < size:
            raise UsageError(f"subset: numbers from {chosen.min()} to {chosen.max()}; this dataset has {size} samples")
        positions = chosen.astype(np.int64)
        positions[positions < 0] += size
        other = copy.copy(self)
        other._numbers_of = opened.store.manifest.fingerprint
        other._numbers = np.array([opened.number(int(position)) for position in positions], np.int64)
        return other

    def close(self) -> None:
        """Let go of the open files. The dataset stays usable: they are opened again at the next read."""
        if self._opened is not None:
            self._opened.store.close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        check_sendable(self.transform, "PackedDataset: transform")
        return self._unopened_state()

    def __copy__(self) -> PackedDataset:
        return self._with_state(self._unopened_state())

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedDataset:
        other = memo[id(self)] = self._with_state({})  # first: a transform may refer to its dataset
        other.__dict__.update(copy.deepcopy(self._unopened_state(), memo))
        return other

    def __repr__(self) -> str:
        split = f", split={self.split!r}" if self.split is not None else ""
        return f"PackedDataset({os.fspath(self.root)!r}{split})"

    def _unopened_state(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _with_state(self, state: dict[str, Any]) -> PackedDataset:
        other = type(self).__new__(type(self))
        other.__dict__.update(state)
        return other

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is None:
            store = open_store(self.root)
            self._check_numbers(store)
            positions = self._view.positions(store.manifest.schema)
            opened = self._opened = _Opened(store, self._ranges(store), self._numbers, positions)
        return opened

    def _check_numbers(self, store: Store) -> None:
        if self._numbers is not None and store.manifest.fingerprint != self._numbers_of:
            raise DatasetError(
                f"{self.root}: packed anew since this subset was made; its {len(self._numbers):,} sample numbers mean"
                " other samples now; make the subset again"
            )

    def _ranges(self, store: Store) -> tuple[tuple[int, int], ...]:
        splits = store.manifest.splits
        if self.split is None:
            return store.manifest.kept
        if self.split not in splits:
            raise UsageError(f"{self.root}: no split {self.split!r}; it has {', '.join(splits)}; choose one of them")
        return splits[self.split]

    def _name_ranges(self, opened: _Opened) -> tuple[tuple[int, int], ...]:
        """Ranges within which names ascend: those of the splits, in full or one of them."""
        if self.split is not None:
            return opened.ranges
        return tuple(part for parts in opened.store.manifest.splits.values() for part in parts)

    def _read(self, opened: _Opened, position: int) -> dict[str, Any]:
        number = opened.number(position)
        check = self.verify == "always" or (self.verify == "once" and number not in opened.checked)
        arrays: dict[str, Any] = opened.store.read(number, self._view.names, check=check)
        if check:
            opened.checked.add(number)
        name = opened.store.names[number]
        where = f"{self.root}: sample {name}"
        if any(field not in arrays for field in self._view.names or ()):
            self._view.require([place.name for place in opened.store.places(number)], where)
        if self.label_map is not None and LABEL_FIELD in arrays:
            arrays[LABEL_FIELD] = self._map_labels(arrays[LABEL_FIELD], name)
        sample = self._view.apply(arrays, opened.columns, where)
        sample["name"] = name
        sample["index"] = position
        return sample

    def _map_labels(self, labels: NDArray[Any], name: str) -> NDArray[np.int64]:
        assert self.label_map is not None
        try:
            return self.label_map.forward(labels, ignore_index=self.ignore_index)
        except LabelError as error:
            raise LabelError(f"{self.root}: sample {name}, field {LABEL_FIELD}: {error}") from error


class _Opened:
    """What a dataset keeps once it is open: store, ranges, columns, and which records were verified."""

    def __init__(
        self,
        store: Store,
        ranges: tuple[tuple[int, int], ...],
        numbers: NDArray[np.int64] | None,
        columns: Mapping[str, list[int]],
    ) -> None:
        self.columns = columns
        self.store = store
        self.ranges = ranges
        self.numbers = numbers
        self.samples = sum(stop - start for start, stop in ranges) if numbers is None else len(numbers)
        self.checked = CheckedOnce(store.manifest.numbers)
        self._befores = list(itertools.accumulate((stop - start for start, stop in ranges), initial=0))

    def position(self, index: Any) -> int:
        """`index` counted from the start. Raises `IndexError` outside, `TypeError` for no number."""
        try:
            position = int(index.__index__())
        except (AttributeError, TypeError):
            raise TypeError(f"sample number {index!r}: an integer is needed, not {type(index).__name__}") from None
        if position < 0:
            position += self.samples
        if not 0 <= position < self.samples:
            raise IndexError(f"sample {index} of {self.samples} in {self.store.root}")
        return position

    def number(self, position: int) -> int:
        """The number in the whole dataset of the sample at `position`."""
        if self.numbers is not None:
            return int(self.numbers[position])
        part = bisect.bisect_right(self._befores, position) - 1
        return self.ranges[part][0] + position - self._befores[part]

    def position_of(self, number: int) -> int | None:
        """The position of sample `number` of the whole dataset; None where it is not part of this one."""
        if self.numbers is not None:
            found = np.flatnonzero(self.numbers == number)
            return int(found[0]) if len(found) else None
        part = bisect.bisect_right(self.ranges, number, key=operator.itemgetter(0)) - 1
        inside = part >= 0 and number < self.ranges[part][1]
        return self._befores[part] + number - self.ranges[part][0] if inside else None

    def index_parts(self) -> Iterator[NDArray[np.void]]:
        """The index rows of the samples, in order, in parts."""
        if self.numbers is not None:
            yield self.store.index.take(self.numbers)
            return
        for start, stop in self.ranges:
            yield from self.store.index.blocks(start, stop)


class _LazyNames(Sequence[str]):
    """The names of a dataset's samples, read as they are asked for."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"<names of {self._dataset!r}>"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        opened = self._dataset._open()
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return opened.store.names[opened.number(opened.position(index))]

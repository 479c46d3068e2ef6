"""Batches of ragged clouds through torch's DataLoader: every point in its place, or an error that says whose."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastload
from fastload import PackedDataset
from fastload.errors import CollateError, CorruptError
from fastload.schema import Field, Schema
from tests.support import MadeSample, tree_bytes, write_store

SCHEMA = Schema(
    (
        Field("points", dtype="float32", shape=(4,), rows="points"),
        Field("semantic", dtype="uint16", rows="points"),
        Field("pose", dtype="float64", shape=(4, 4)),
    )
)
NOTES = hasattr(BaseException, "add_note")
"""Python 3.11 and newer: a note can be added to any exception."""


def arrays_of(number, count):
    rng = np.random.default_rng([number, count])
    return {
        "points": rng.random((count, 4), np.float32),
        "semantic": rng.integers(0, 65536, count).astype(np.uint16),
        "pose": rng.random((4, 4)),
    }


def write(root, counts):
    samples = [MadeSample(f"{i:04d}", "train", arrays_of(i, count)) for i, count in enumerate(counts)]
    write_store(root, SCHEMA, samples, per_shard=4)
    return PackedDataset(root)


def assert_batches(batches, counts, size):
    """The batches are numpy's concatenation of the samples, in order."""
    assert len(batches) == -(-len(counts) // size)
    for first, batch in zip(range(0, len(counts), size), batches, strict=True):
        part = [arrays_of(i, counts[i]) for i in range(first, min(first + size, len(counts)))]
        for name in ("points", "semantic"):
            expected = np.concatenate([sample[name] for sample in part])
            assert np.array_equal(batch[name].numpy(), expected)
            assert batch[name].shape == expected.shape
        assert np.array_equal(batch["pose"].numpy(), np.stack([sample["pose"] for sample in part]))
        assert batch["offset"].tolist() == np.cumsum([len(sample["points"]) for sample in part]).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("counts", [(5, 0, 3, 5), (2048, 2048, 2047, 2048), (7, 7, 7, 7), (0, 0, 1, 0, 0)])
def test_clouds_of_any_sizes_are_joined_with_offsets(tmp_path, counts, workers, size):
    """An empty cloud keeps its place; clouds that happen to be equally large are joined like all others."""
    dataset = write(tmp_path / "d", counts)
    assert_batches(list(DataLoader(dataset, size, num_workers=workers, collate_fn=dataset.collate)), counts, size)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_any_counts_and_batch_sizes(tmp_path_factory, counts, size):
    dataset = write(tmp_path_factory.mktemp("any") / "d", counts)
    assert_batches(list(DataLoader(dataset, size, collate_fn=dataset.collate)), counts, size)


def test_torchs_own_collation_of_ragged_clouds_is_an_error_and_never_a_cut_batch(tmp_path):
    """Nothing of ours is silently padded or cut for it; with the dataset's own function the same samples join."""
    dataset = write(tmp_path / "d", (5, 0, 3, 5))
    with pytest.raises(RuntimeError, match=r"\[5, 4\].*\[0, 4\]"):
        next(iter(DataLoader(dataset, 2)))
    assert next(iter(DataLoader(dataset, 2, collate_fn=dataset.collate)))["offset"].tolist() == [5, 5]


@pytest.mark.parametrize("use", [
    lambda sample: sample["points"].fill(-1),
    lambda sample: torch.from_numpy(sample["points"]).mul_(0),
    lambda sample: torch.as_tensor(sample["semantic"].view(np.int16)).zero_(),
    lambda sample: sample["pose"].__setitem__(slice(None), np.nan),
])  # fmt: skip
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_writes_into_samples_and_batches_reach_neither_the_files_nor_the_next_epoch(tmp_path, use, workers):
    """Arrays are private and writable: no warning when torch takes them, nothing changed when read again."""
    counts = (5, 0, 3, 5)
    dataset = write(tmp_path / "d", counts)
    files = tree_bytes(tmp_path / "d")
    for index in range(len(dataset)):
        sample = dataset[index]
        use(sample)
        assert all(
            np.array_equal(dataset[index][name], array) for name, array in arrays_of(index, counts[index]).items()
        )
    loader = DataLoader(dataset, 2, num_workers=workers, collate_fn=dataset.collate)
    for _ in range(2):
        batches = list(loader)
        assert_batches(batches, counts, 2)
        for batch in batches:
            for name in ("points", "semantic", "pose"):
                batch[name][..., :2].fill_(0)
    assert_batches(list(DataLoader(PackedDataset(tmp_path / "d"), 2, collate_fn=dataset.collate)), counts, 2)
    assert fastload.verify(tmp_path / "d").ok
    assert tree_bytes(tmp_path / "d") == files


# --- a sample that is missing from its batch


class Failing:
    """A transform that fails for some samples, as a user's code does."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def __call__(self, sample):
        if sample["index"] in self.numbers:
            return sample["points"][10**6]  # IndexError of numpy
        return sample


class Filtering(Failing):
    """A transform that gives None for some samples: they are to be left out."""

    def __call__(self, sample):
        return None if sample["index"] in self.numbers else sample


def batches_until_error(loader, kind):
    """The numbers of the samples that came, and the error that ended it; the loader's workers end here."""
    seen = []
    try:
        for batch in loader:
            seen += batch["index"].tolist()
    except kind as error:
        return seen, error.with_traceback(None)  # a traceback would keep the iterator, and its workers, alive
    raise AssertionError(f"no error after {seen}")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("numbers", [(7,), (4, 5, 6, 7), (9,)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_sample_whose_transform_raises_stops_the_epoch_by_name(tmp_path, workers, numbers):
    """The batches before it come whole; then the transform's own error, with its traceback and the sample's name.

    No batch is smaller than it should be, so that no score is taken over fewer samples in silence.
    """
    dataset = write(tmp_path / "d", (3,) * 10)
    dataset.transform = Failing(*numbers)
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=dataset.collate)
    seen, error = batches_until_error(loader, IndexError)
    assert seen == list(range(numbers[0] // 4 * 4))
    text = str(error) if workers else ""
    assert not workers or 'return sample["points"][10**6]' in text
    if NOTES:
        text += "".join(getattr(error, "__notes__", ()))
        assert f"of sample {numbers[0]:04d}" in text
        assert str(tmp_path / "d") in text


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("numbers", [(7,), (4, 5, 6, 7), (8, 9), (0,)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_sample_that_is_none_is_refused_with_its_place_and_the_ways_out(tmp_path, workers, numbers):
    """A batch with a hole, or an empty one, never reaches the training loop."""
    dataset = write(tmp_path / "d", (3,) * 10)
    dataset.transform = Filtering(*numbers)
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=dataset.collate)
    seen, error = batches_until_error(loader, CollateError)
    assert seen == list(range(numbers[0] // 4 * 4))
    assert f"sample {numbers[0] % 4} of the batch is None" in str(error)
    assert "dataset.subset(indices)" in str(error)
    dataset.transform = None
    kept = [i for i in range(10) if i not in numbers]
    rest = dataset.subset(kept)
    names = [name for batch in DataLoader(rest, 4, collate_fn=rest.collate) for name in batch["name"]]
    assert names == [f"{i:04d}" for i in kept]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_damaged_sample_stops_the_epoch_by_name_and_the_others_can_be_taken(tmp_path, workers):
    """One flipped byte at sample 7: its name, shard and field in the error, attributes kept across processes."""
    dataset = write(tmp_path / "d", (3,) * 10)
    damaged = dataset.info(7).shard
    data = bytearray((tmp_path / "d" / damaged).read_bytes())
    data[data.index(arrays_of(7, 3)["points"].tobytes())] ^= 1
    (tmp_path / "d" / damaged).write_bytes(data)
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=dataset.collate)
    seen, error = batches_until_error(loader, CorruptError)
    assert seen == [0, 1, 2, 3]
    assert "sample 0007" in str(error)
    assert "field points" in str(error)
    (problem,) = fastload.verify(tmp_path / "d").problems
    assert (problem.sample, problem.index) == ("0007", 7)
    rest = dataset.subset([i for i in range(10) if i != problem.index])
    indices = [index for batch in DataLoader(rest, 4, collate_fn=rest.collate) for index in batch["index"].tolist()]
    assert indices == list(range(9))


def test_a_batch_of_samples_that_a_transform_shares_is_copied(tmp_path):
    """A mixing augmentation may put one sample's array into another; the batch holds values, not the arrays."""
    dataset = write(tmp_path / "d", (3, 3))
    first, second = dataset[0], dataset[1]
    second["points"] = first["points"]
    before = copy.deepcopy(first["points"])
    batch = dataset.collate([first, second])
    batch["points"][:3] = 0
    assert np.array_equal(first["points"], before)
    assert np.array_equal(batch["points"][3:].numpy(), before)


def test_padding_of_labels_is_the_ignore_index_of_the_dataset_that_is_bound(tmp_path):
    """The loss leaves out what it leaves out of the scans; the same function pads the labels of any subset."""
    write(tmp_path / "d", (5, 0, 3))
    names = {"labels": {0: "a"}, "learning_map": {0: 0}, "learning_map_inv": {0: 0}, "learning_ignore": {0: False}}
    label_map = fastload.LabelMap.from_mapping(names, source="made")
    dataset = PackedDataset(tmp_path / "d", label_map=label_map, ignore_index=255)
    padded = fastload.Collate(layout="padded").bind(dataset)
    for chosen in (dataset, dataset.subset([2, 0])):
        (batch,) = DataLoader(chosen, 3, collate_fn=padded)
        assert batch["valid"].sum(1).tolist() == batch["length"].tolist() == chosen.counts.tolist()
        assert batch["semantic"][~batch["valid"]].eq(255).all()
        assert batch["points"][~batch["valid"]].eq(0).all()
    assert dataset.collate == fastload.Collate().bind(dataset)

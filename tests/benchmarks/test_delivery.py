"""What is delivered: how samples lie in batches, and what their digest tells apart."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.delivery import Consumer, Content, Delivery, content_of, explain_difference, touch

NAMES = ("points", "labels")


def samples_of(seed, count):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, count)
    return [{"points": rng.random((n, 3), np.float32), "labels": rng.integers(0, 9, n)} for n in sizes]


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 5), st.randoms())
def test_batches_and_order_do_not_show(seed, count, batch_size, random):
    samples = samples_of(seed, count)
    shuffled = random.sample(samples, count)
    consumer = Consumer(Delivery(NAMES, "offset"), check=True)
    for first in range(0, count, batch_size):
        part = shuffled[first : first + batch_size]
        batch = {name: torch.from_numpy(np.concatenate([sample[name] for sample in part])) for name in NAMES}
        consumer.take({**batch, "offset": torch.tensor([len(sample["points"]) for sample in part]).cumsum(0)})
    expected = content_of(samples)
    assert consumer.content() == expected
    assert consumer.samples == count
    assert consumer.nbytes == expected.nbytes == sum(a.nbytes for sample in samples for a in sample.values())


def test_rows_are_samples():
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), np.uint8)
    consumer = Consumer(Delivery(("image", "label"), "rows"), check=True)
    consumer.take({"image": images, "label": np.arange(4)})
    assert consumer.samples == 4
    assert consumer.content() == content_of(
        {"image": image, "label": np.int64(label)} for label, image in enumerate(images)
    )


@pytest.mark.parametrize("offset", [[[4]], 4, [4.0], [True], [3], [5], [4, 2], [-1, 4], []])
def test_offsets_that_are_none(offset):
    batch = {"points": np.zeros((4, 3), np.float32), "labels": np.arange(4), "offset": np.array(offset)}
    with pytest.raises(ValueError, match="offset"):
        Consumer(Delivery(NAMES, "offset"), check=True).take(batch)


def test_rows_of_another_number():
    with pytest.raises(ValueError, match="field 'label': found 3 rows in a batch; expected 4, one row a sample"):
        Consumer(Delivery(("image", "label"), "rows"), check=True).take(
            {"image": np.zeros((4, 8)), "label": np.arange(3)}
        )


def test_content_survives_json():
    content = content_of(samples_of(1, 3))
    assert Content.from_json(content.to_json()) == content


@pytest.mark.parametrize(("change", "words"), [
    (lambda samples: samples[1:], "2 samples; the reference delivers 3"),
    (lambda samples: [samples[0], samples[0], samples[2]], "bytes of"),
    (lambda samples: [{**s, "labels": s["labels"].astype(np.int32)} for s in samples], "bytes of int32"),
    (lambda samples: [{"points": s["points"]} for s in samples], "field 'labels': missing"),
    (lambda samples: [{**s, "points": -s["points"]} for s in samples], "field 'points': other values"),
    (lambda samples: [{**s, "points": s["points"].reshape(3, -1)} for s in samples], "field 'points': other values"),
])  # fmt: skip
def test_differences_are_said(change, words):
    samples = samples_of(5, 3)
    assert len({len(sample["points"]) for sample in samples}) == 3
    difference = explain_difference(content_of(change(samples)), content_of(samples))
    assert words in difference


def test_every_page_is_read():
    array = np.zeros((3, 5000), np.uint8)
    assert touch(array) == 0
    for at in range(0, array.size, 4096):
        marked = array.copy()
        marked.reshape(-1)[at] = 1
        assert touch(marked) == 1
    assert touch(np.empty((0, 4), np.float32)) == 0

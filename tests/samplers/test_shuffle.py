"""The shuffle of one process: whose seed it takes, and that it draws from no generator."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from fastload.errors import UsageError
from fastload.samplers.distributed import DistributedSampler
from fastload.samplers.shuffle import ShuffleSampler


def at_epoch(sampler: ShuffleSampler | DistributedSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_it_is_the_distributed_order_of_one_rank(epoch):
    assert at_epoch(ShuffleSampler(range(50), seed=3), epoch) == at_epoch(DistributedSampler(range(50), seed=3), epoch)


def test_its_seed_is_given_or_the_generators_or_torchs():
    orders = {seed: list(ShuffleSampler(range(50), seed=seed)) for seed in (5, 6, 7)}
    generator = torch.Generator().manual_seed(6)
    torch.manual_seed(7)
    assert list(ShuffleSampler(range(50), 5, generator)) == orders[5]
    assert list(ShuffleSampler(range(50), generator=generator)) == orders[6]
    sampler = ShuffleSampler(range(50))
    torch.manual_seed(7)  # read when the pass begins, not when the sampler is made
    assert list(sampler) == orders[7]


def test_generators_are_left_alone():
    generator = torch.Generator().manual_seed(6)
    before = torch.get_rng_state(), generator.get_state()
    for sampler in (ShuffleSampler(range(50)), ShuffleSampler(range(50), generator=generator)):
        at_epoch(sampler, 4)
        sampler.state_dict()
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], generator.get_state())


def test_frameworks_find_what_torchs_has():
    generator = torch.Generator()
    sampler = ShuffleSampler(data := list(range(9)), generator=generator)
    assert isinstance(sampler, RandomSampler)
    assert sampler.data_source is data
    assert (sampler.replacement, sampler.num_samples, sampler._num_samples, len(sampler)) == (False, 9, None, 9)
    assert sampler.generator is generator
    rebuilt = RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator)
    assert sorted(rebuilt) == sorted(sampler)


def test_no_samples_are_an_empty_pass():
    sampler = ShuffleSampler([])
    assert (len(sampler), list(sampler), list(sampler)) == (0, [], [])


def test_under_torchs_loader():
    loader = DataLoader(range(10), batch_size=3, sampler=ShuffleSampler(range(10), seed=1))
    assert [index for batch in loader for index in batch.tolist()] == list(ShuffleSampler(range(10), seed=1))


def test_without_a_seed_a_loaded_one_is_taken_over():
    saved = ShuffleSampler(range(50), seed=5)
    current = saved.begin_pass()
    current.delivered(20)
    torch.manual_seed(99)
    sampler = ShuffleSampler(range(50))
    sampler.load_state_dict(saved.state_dict())
    assert sampler.state_dict() == saved.state_dict()
    assert list(sampler) == list(current)[20:]
    assert at_epoch(sampler, 1) == at_epoch(saved, 1)


@pytest.mark.parametrize(
    ("options", "advice"),
    [({"seed": 6}, "seed=5"), ({"generator": torch.Generator().manual_seed(6)}, r"manual_seed\(5\)")],
)
def test_another_seed_than_the_states_is_refused(options, advice):
    state = ShuffleSampler(range(50), seed=5).state_dict()
    with pytest.raises(UsageError, match=f"seed is 5, but this ShuffleSampler's is 6: .*{advice}"):
        ShuffleSampler(range(50), **options).load_state_dict(state)


def test_the_generators_own_seed_is_accepted():
    saved = ShuffleSampler(range(50), seed=5)
    saved.set_epoch(3)
    sampler = ShuffleSampler(range(50), generator=torch.Generator().manual_seed(5))
    sampler.load_state_dict(saved.state_dict())
    assert list(sampler) == list(saved)


def test_states_of_an_unshuffled_order_are_refused():
    state = DistributedSampler(range(50), shuffle=False).state_dict()
    with pytest.raises(UsageError, match="shuffle is False"):
        ShuffleSampler(range(50)).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "1"}, "^seed='1'"),
        ({"generator": 5}, "^generator=5"),
        ({"data_source": iter([])}, "^dataset=.*cannot be counted"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(TypeError, match=message):
        ShuffleSampler(**{"data_source": range(3), **options})


def test_a_forgotten_set_epoch_is_said():
    sampler = ShuffleSampler(range(10), seed=0)
    list(sampler)
    with pytest.warns(UserWarning, match="^ShuffleSampler: .*set_epoch"):
        list(sampler)

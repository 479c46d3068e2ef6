"""What one rank of a process group does in the tests of agreement: prints one JSON object, name -> outcome.

Run as: ranks.py RANK NUM_RANKS INIT_METHOD
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time

import torch
import torch.distributed as dist

from fastload.errors import UsageError
from fastload.samplers import agreement
from fastload.samplers.distributed import DistributedSampler

LENGTH = 100


def first_pass(sampler: DistributedSampler) -> dict[str, object]:
    """What comes of a pass: its order, or the error's text; and after how long."""
    begin = time.monotonic()
    try:
        current = sampler.begin_pass()
    except UsageError as error:
        return {"error": str(error), "seconds": time.monotonic() - begin}
    return {"seed": current.seed, "indices": list(current), "seconds": time.monotonic() - begin}


def equal(rank: int) -> dict[str, object]:
    return first_pass(DistributedSampler(range(LENGTH)))


def other_seed(rank: int) -> dict[str, object]:
    sampler = DistributedSampler(range(LENGTH), seed=rank)
    first = first_pass(sampler)
    return {**first, "again": first_pass(sampler)}


def other_length(rank: int) -> dict[str, object]:
    return first_pass(DistributedSampler(range(LENGTH - rank)))


def other_drop_last(rank: int) -> dict[str, object]:
    return first_pass(DistributedSampler(range(LENGTH), drop_last=rank == 1))


def other_epoch(rank: int) -> dict[str, object]:
    sampler = DistributedSampler(range(LENGTH))
    sampler.set_epoch(rank)
    return first_pass(sampler)


def other_position(rank: int) -> dict[str, object]:
    sampler = DistributedSampler(range(LENGTH))
    sampler.load_state_dict({**sampler.state_dict(), "delivered": 40 + 2 * rank})
    return first_pass(sampler)


def other_seed_unshuffled(rank: int) -> dict[str, object]:
    return first_pass(DistributedSampler(range(LENGTH), shuffle=False, seed=rank))


def other_seed_of_given_ranks(rank: int) -> dict[str, object]:
    return first_pass(DistributedSampler(range(LENGTH), dist.get_world_size(), rank, seed=rank))


def shared_seed(rank: int) -> dict[str, object]:
    torch.manual_seed(100 + rank)
    sampler = DistributedSampler(range(LENGTH), seed=None)
    before = sampler.state_dict()["seed"]
    outcome = first_pass(sampler)
    return {**outcome, "before": before, "after": sampler.state_dict()["seed"], "attribute": sampler.seed}


def extra_sampler_on_rank_0(rank: int) -> dict[str, object]:
    if rank == 0:
        DistributedSampler(range(7))
    return first_pass(DistributedSampler(range(LENGTH)))


def copies(rank: int) -> dict[str, object]:
    sampler = DistributedSampler(range(LENGTH))
    outcome = first_pass(sampler if rank == 0 else copy.deepcopy(sampler))
    pickle.loads(pickle.dumps(sampler)).begin_pass()
    return outcome


def rank_0_alone_first(rank: int) -> dict[str, object]:
    agreement.CHECK_TIMEOUT_S = 1.0
    sampler = DistributedSampler(range(LENGTH))
    alone = first_pass(sampler) if rank == 0 else None
    dist.barrier()
    sampler.set_epoch(5)
    return {**first_pass(sampler), "alone": alone}


def rank_0_alone_with_another_seed(rank: int) -> dict[str, object]:
    agreement.CHECK_TIMEOUT_S = 1.0
    sampler = DistributedSampler(range(LENGTH), seed=rank)
    alone = first_pass(sampler) if rank == 0 else None
    dist.barrier()
    return {**first_pass(sampler), "alone": alone}


def no_seed_from_rank_0(rank: int) -> dict[str, object]:
    agreement.SEED_TIMEOUT_S = 0.5
    sampler = DistributedSampler(range(LENGTH), seed=None)
    return first_pass(sampler) if rank == 1 else {}


SCENES = (
    *(equal, other_seed, other_length, other_drop_last, other_epoch, other_position, other_seed_unshuffled),
    *(other_seed_of_given_ranks, shared_seed, extra_sampler_on_rank_0, copies, rank_0_alone_first),
    *(rank_0_alone_with_another_seed, no_seed_from_rank_0),
)


def main(rank: int, num_ranks: int, init_method: str) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=num_ranks)
    outcomes = {}
    for scene in SCENES:
        outcomes[scene.__name__] = scene(rank)
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

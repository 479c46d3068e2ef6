"""Train a small network that gives each LiDAR point its class, on a packed dataset with semantic labels.

An example to copy from: a plain PyTorch loop over `torch.utils.data.DataLoader(fastload.PackedDataset(...))`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pillar_net import PillarNet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from fastload import Batch, FastloadError, LabelMap, PackedDataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
UNLABELED = 0
PEAK_RATE = 4e-3
REPORT_EVERY_S = 5
NEEDED_GAIN = 3  # with --check: times the mIoU of always answering the commonest class


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """Turn the scan about the vertical axis, mirror half of the scans, leave out up to a fifth of the points."""
    turn, mirror, dropped = torch.rand(3).tolist()  # torch gives each worker its own seed
    cos, sin, sign = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn), 1 if mirror < 0.5 else -1
    kept = torch.rand(len(sample["points"])).numpy() >= 0.2 * dropped
    points, semantic = sample["points"][kept], sample["semantic"][kept]
    points[:, :2] @= np.array([[cos, sign * sin], [-sin, sign * cos]], np.float32)
    return {**sample, "points": points, "semantic": semantic}


def train(net: nn.Module, loader: DataLoader[Any], seconds: float, steps: int) -> list[float]:
    """Train for so many seconds or steps, whichever ends first. Gives each step's loss."""
    optimizer = torch.optim.AdamW(net.parameters())
    net.train()
    losses: list[Tensor] = []  # kept on the device: reading one waits for it
    points, waited = 0, 0.0
    batches = endless(loader)
    batch = next(batches)  # before the clock runs: it starts the workers
    start = reported = time.perf_counter()
    for step in range(steps):
        done = max(step / steps, (time.perf_counter() - start) / seconds)
        if done >= 1:
            break
        optimizer.param_groups[0]["lr"] = PEAK_RATE * (1 + math.cos(math.pi * done)) / 2
        batch = batch.to(DEVICE, non_blocking=True)
        scores = net(batch["points"], batch["offset"])
        loss = cross_entropy(scores, batch["semantic"], ignore_index=UNLABELED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        losses.append(loss.detach())
        points += len(scores)
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        if time.perf_counter() - reported > REPORT_EVERY_S:
            mean = torch.stack(losses[-20:]).mean().item()
            reported = time.perf_counter()
            print(f"step {step + 1:5,}  loss {mean:.3f}  {points / (reported - start):,.0f} points/s", flush=True)
    values: list[float] = torch.stack(losses).tolist() if losses else []
    loop = time.perf_counter() - start
    share = 100 * waited / loop
    print(f"{len(losses):,} steps in {loop:.1f} s; waited for data: {share:.1f} % of the loop", flush=True)
    return values


def endless(loader: DataLoader[Any]) -> Iterator[Batch]:
    while True:
        yield from loader


@torch.no_grad()
def evaluate(net: nn.Module, loader: DataLoader[Any], classes: int) -> Tensor:
    """(classes, classes) int64: how many points of each class (row) got which answer (column)."""
    net.eval()
    counts = torch.zeros(classes**2, dtype=torch.int64, device=DEVICE)
    for batch in loader:
        batch = batch.to(DEVICE, non_blocking=True)
        answer = net(batch["points"], batch["offset"]).argmax(1)
        counts += torch.bincount(batch["semantic"] * classes + answer, minlength=classes**2)
    confusion = counts.view(classes, classes).cpu()
    confusion[UNLABELED] = 0  # unlabeled points count for nothing
    return confusion


def mean_iou(confusion: Tensor) -> float:
    """Mean intersection over union of the classes that some labelled point has."""
    hits, truth, answers = confusion.diag(), confusion.sum(1), confusion.sum(0)
    return float((hits / (truth + answers - hits))[truth > 0].mean())


def report(losses: list[float], confusion: Tensor, names: Sequence[str]) -> list[str]:
    """Print what was learned. Gives the reasons to doubt that anything was."""
    quarter = max(1, len(losses) // 4)
    first, last = (sum(part) / quarter for part in (losses[:quarter], losses[-quarter:]))
    print(f"loss: {first:.3f} in the first quarter of the steps, {last:.3f} in the last")
    commonest = int(confusion.sum(1).argmax())
    constant = torch.zeros_like(confusion)
    constant[:, commonest] = confusion.sum(1)
    reached, least = mean_iou(confusion), mean_iou(constant)
    print(f'validation: mIoU {reached:.3f}; always answering "{names[commonest]}" would give {least:.3f}')
    doubts = [] if last < first else ["the loss has not fallen"]
    needed = NEEDED_GAIN * least
    return doubts if reached >= needed else [*doubts, f"mIoU {reached:.3f} is below {NEEDED_GAIN} x {least:.3f}"]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, workers = parser.add_argument, 2 if DEVICE.type == "cuda" else 0  # on a CPU, training needs the cores
    add("packed", metavar="PACKED", help="folder that `fastload pack` wrote, with the splits train and val")
    add("--seconds", type=float, metavar="S", help="train for so long (default: 60, or what --steps takes)")
    add("--steps", type=int, metavar="N", help="train for so many steps")
    add("--batch-size", type=int, default=4, metavar="B", help="scans a step (default: 4)")
    add("--workers", type=int, default=workers, metavar="W", help="processes that load data (default: %(default)s)")
    add("--val-scans", type=int, default=200, metavar="V", help="validate on at most V scans (default: 200)")
    add("--seed", type=int, default=0, help="another number gives other weights and another order (default: 0)")
    check = f"exit with 1 unless the loss fell and mIoU is {NEEDED_GAIN} x that of the commonest class"
    add("--check", action="store_true", help=check)
    options = parser.parse_args(argv)
    if options.seconds is None:
        options.seconds = 60.0 if options.steps is None else math.inf
    if options.seconds <= 0 or options.val_scans < 1:
        parser.error("--seconds and --val-scans have to be above 0")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    torch.manual_seed(options.seed)
    fields = ("points", "semantic")
    data = PackedDataset(options.packed, "train", fields=fields, label_map="semantickitti", transform=augment)
    held_out = PackedDataset(options.packed, "val", fields=fields, label_map="semantickitti")
    held_out = held_out.subset(np.linspace(0, len(held_out) - 1, min(len(held_out), options.val_scans)).astype(int))
    print(f"training on {len(data):,} scans of about {int(data.counts.mean()):,} points, on {DEVICE}", flush=True)

    how: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers}
    how |= {"pin_memory": DEVICE.type == "cuda", "persistent_workers": options.workers > 0}
    names = LabelMap.load("semantickitti").names
    net = PillarNet(len(names)).to(DEVICE)
    loader = DataLoader(data, shuffle=True, collate_fn=data.collate, **how)
    losses = train(net, loader, options.seconds, sys.maxsize if options.steps is None else options.steps)
    confusion = evaluate(net, DataLoader(held_out, collate_fn=held_out.collate, **how), len(names))

    doubts = report(losses, confusion, names)
    if options.check:
        print(f"check failed: {'; '.join(doubts)}" if doubts else "check passed")
    return 1 if options.check and doubts else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FastloadError as error:
        sys.exit(f"{Path(__file__).name}: {error}")

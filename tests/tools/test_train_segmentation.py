"""The training example: it trains, learns, measures its waiting, and fails its check where nothing was learned."""

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import train_segmentation
from pillar_net import PillarNet

import fastload
from tests.support import REPO, write_tree


def run_example(packed, *arguments):
    """Run the script in a process of its own. The environment need not have fastload installed."""
    command = [sys.executable, "-W", "error", str(REPO / "tools" / "train_segmentation.py"), str(packed), *arguments]
    env = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_example_trains_and_reports(packed, workers):
    done = run_example(packed, "--steps", "4", "--batch-size", "2", "--workers", workers)
    assert done.returncode == 0, done.stderr
    assert "training on 3 scans of about " in done.stdout
    assert re.search(r"^4 steps in [\d.]+ s; waited for data: [\d.]+ % of the loop$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^loss: \d\.\d+ in the first quarter of the steps, \d\.\d+ in the last$", done.stdout, re.MULTILINE
    )
    assert re.search(
        r'^validation: mIoU [\d.]+; always answering "[\w-]+" would give 0\.\d+$', done.stdout, re.MULTILINE
    )
    assert "nan" not in done.stdout


def test_check_fails_where_nothing_was_learned(packed):
    done = run_example(packed, "--steps", "0", "--check")
    assert done.returncode == 1
    assert "check failed: the loss has not fallen; mIoU 0." in done.stdout


def test_time_is_up_before_the_steps_are_made(packed):
    done = run_example(packed, "--steps", "100000", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"^([\d,]+) steps in", done.stdout, re.MULTILINE).group(1).replace(",", "")) < 1000


def test_no_time_at_all_is_refused(packed):
    done = run_example(packed, "--seconds", "0")
    assert done.returncode == 2
    assert "--seconds and --val-scans have to be above 0" in done.stderr


def test_what_cannot_be_read_is_a_message_not_a_traceback(packed, tmp_path):
    done = run_example(tmp_path / "nowhere", "--steps", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("train_segmentation.py: ")
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_scans_without_poses_and_times_will_do(tmp_path):
    fastload.pack(write_tree(tmp_path / "bare", {"00/000000": 300, "08/000000": 200}), tmp_path / "packed")
    done = run_example(tmp_path / "packed", "--steps", "2")
    assert done.returncode == 0, done.stderr


def test_augmentation_keeps_points_with_their_labels(packed):
    plain = fastload.PackedDataset(packed, "train", fields=("points", "semantic"))[0]
    torch.manual_seed(3)
    turned = train_segmentation.augment({**plain})
    rows = [(*np.round(row, 3), label) for row, label in zip(_kept(plain["points"]), plain["semantic"], strict=True)]
    turned_rows = [
        (*np.round(row, 3), label) for row, label in zip(_kept(turned["points"]), turned["semantic"], strict=True)
    ]
    assert 0.75 * len(rows) < len(turned_rows) <= len(rows)
    close = sum(row in set(rows) for row in turned_rows)
    assert close > 0.95 * len(turned_rows)  # the rest was rounded the other way


def _kept(points):
    """(N, 3): what a turn or a mirror leaves as it is, in millimetres: distance, height and intensity."""
    return np.column_stack([np.hypot(points[:, 0], points[:, 1]), points[:, 2], points[:, 3]]).astype(np.float64)


def test_scans_of_a_batch_do_not_mix():
    torch.manual_seed(0)
    net = PillarNet(20).eval()
    scans = [torch.rand(n, 4) * 20 for n in (50, 80, 30)]
    offset = torch.tensor([50, 130, 160])
    together = net(torch.cat(scans), offset)
    alone = [net(scan, torch.tensor([len(scan)])) for scan in scans]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_mean_iou_by_hand():
    confusion = torch.tensor([[0, 0, 0, 0], [0, 3, 1, 0], [0, 2, 2, 0], [0, 0, 0, 0]])
    assert math.isclose(train_segmentation.mean_iou(confusion), (3 / 6 + 2 / 5) / 2, rel_tol=1e-6)

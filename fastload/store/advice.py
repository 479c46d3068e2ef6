"""What to do about a damaged file of a dataset, in the words that errors and problems end with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_SHARD_SUFFIX = ".lmdb"


def advise(path: Path) -> str:
    """What to do about a file that is missing or damaged: a shard, or one that is made of the shards."""
    if path.suffix == _SHARD_SUFFIX:
        return f"copy it anew, or leave out what is damaged with: {repair_command(path.parent.parent)} --drop-damaged"
    return f"copy it anew, or rebuild it with: {repair_command(path.parent)}"


def advise_sample(root: Path) -> str:
    """What to do about a damaged sample."""
    return f"copy it anew, or leave the damaged samples out with: {repair_command(root)} --drop-damaged"


def advise_pages(root: Path) -> str:
    """What to do about a shard whose records are sound and whose pages are not."""
    return f"copy it anew, or rebuild its pages with: {repair_command(root)}"


def repair_command(root: Path) -> str:
    """The command that repairs the dataset."""
    return f"fastload repair {shlex.quote(os.fspath(root))}"

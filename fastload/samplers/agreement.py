"""Whether all ranks of the process group hold the same order: parts of different orders lose and repeat samples.

The ranks tell each other through the store that the group was made with, not through a collective: a collective at
the first pass would hang where, as is allowed, only some ranks begin one (rank 0 looks at a batch first), and would
mix with the collectives of the training. A rank waits for the others for a limited time, then goes on unchecked.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from fastload.errors import UsageError
from fastload.samplers.arguments import has_group

CHECK_TIMEOUT_S = 10.0
"""How long a rank waits at its first pass for the others to come to theirs."""
SEED_TIMEOUT_S = 300.0
"""How long a rank waits for the seed that rank 0 shares: as long as the group's own store waits by default."""
MAX_ROWS_IN_MESSAGE = 20

_AGREED = "agreed"


@dataclass(frozen=True)
class Terms:
    """What must be the same on all ranks when a pass begins.

    Attributes:
        position: where in the global order the pass begins.
    """

    seed: int
    length: int
    epoch: int
    drop_last: bool
    shuffle: bool
    position: int


@dataclass(frozen=True)
class _Row:
    terms: Terms
    gone_on: bool = False  # waited in vain: its epoch and position say nothing about what it does by now

    def to_json(self) -> str:
        return json.dumps({**asdict(self.terms), "gone_on": self.gone_on})

    @classmethod
    def from_json(cls, text: bytes) -> _Row:
        values = json.loads(text)
        return cls(gone_on=values.pop("gone_on"), terms=Terms(**values))


class Agreement:
    """One sampler's talk with its counterparts on the other ranks.

    Counterparts are those made by the same line of the program, in the same order there: a sampler that only
    some ranks make does not put the others out of step. In-process copies share the talk; pickled ones have none.
    """

    def __init__(self, store: Any, place: str) -> None:
        self._store = store
        self._rank = torch.distributed.get_rank()
        self._num_ranks = torch.distributed.get_world_size()
        number = store.add(f"fastload/order/{place}/made/{self._rank}", 1)
        self._key = f"fastload/order/{place}/{number}"
        self._seed_told = False
        self._verdict: str | None = None

    @classmethod
    def begin(cls) -> Agreement | None:
        """The talk of a sampler that is being made; None where there are no other ranks or no store to talk through."""
        if not has_group() or torch.distributed.get_world_size() < 2:
            return None
        try:
            return cls(torch.distributed.distributed_c10d._get_default_store(), _place_in_program())
        except (AttributeError, RuntimeError, ValueError):  # another torch, or a group made without a real store
            return None

    def __deepcopy__(self, memo: dict[int, Any]) -> Agreement:
        return self

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _no_agreement, ()

    def settle_seed(self, own: int | None) -> int:
        """This rank's own seed; without one (None) that of rank 0, which shares it when it is first asked.

        Raises:
            UsageError: rank 0 did not share its seed in time.
        """
        if self._rank > 0:
            return self._receive_seed() if own is None else own
        seed = torch.initial_seed() if own is None else own
        if not self._seed_told:
            self._seed_told = True
            with contextlib.suppress(RuntimeError):  # the store is gone: who needs the seed says so
                self._tell("seed", str(seed))
        return seed

    def check(self, kind: str, terms: Terms) -> None:
        """Compare with the other ranks, the first time that it is called.

        Raises:
            UsageError: the ranks' terms differ; it holds the table of them. On every rank that came in time.
        """
        if self._verdict is None:
            try:
                self._verdict = self._ask(terms)
            except RuntimeError:  # the store is gone: its host has ended
                self._verdict = _AGREED
        if self._verdict != _AGREED:
            raise UsageError(f"{kind}: {self._verdict}")

    def _receive_seed(self) -> int:
        try:
            self._store.wait([f"{self._key}/seed"], timedelta(seconds=SEED_TIMEOUT_S))
            return int(self._store.get(f"{self._key}/seed"))
        except RuntimeError as error:
            raise UsageError(
                f"seed=None: rank 0 shared no seed with rank {self._rank} within {SEED_TIMEOUT_S:g} s. Rank 0 shares "
                "it when it begins its first pass over the sampler made by the same line; give all ranks one seed="
            ) from error

    def _ask(self, terms: Terms) -> str:
        row = _Row(terms)
        self._tell(f"row/{self._rank}", row.to_json())
        if self._store.add(f"{self._key}/arrived", 1) == self._num_ranks:
            verdict = self._judge()
            self._tell("verdict", verdict)
            return verdict
        try:
            self._store.wait([f"{self._key}/verdict"], timedelta(seconds=CHECK_TIMEOUT_S))
        except RuntimeError:
            self._tell(f"row/{self._rank}", replace(row, gone_on=True).to_json())
            return _AGREED
        return str(self._store.get(f"{self._key}/verdict").decode())

    def _judge(self) -> str:
        """The last rank to come reads all rows, for all."""
        rows = [_Row.from_json(self._store.get(f"{self._key}/row/{rank}")) for rank in range(self._num_ranks)]
        return _AGREED if _agree(rows) else _table_of(rows)

    def _tell(self, what: str, text: str) -> None:
        self._store.set(f"{self._key}/{what}", text)


def _no_agreement() -> None:
    """What a pickled agreement is in another process, which may be no rank at all."""


def _place_in_program() -> str:
    """File and line of the nearest caller outside this package: equal on all ranks, which run one program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fastload.samplers."):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _agree(rows: list[_Row]) -> bool:
    shuffled = any(row.terms.shuffle for row in rows)
    lasting = {(t.length, t.drop_last, t.shuffle, t.seed if shuffled else None) for t in (row.terms for row in rows)}
    passing = {(row.terms.epoch, row.terms.position) for row in rows if not row.gone_on}
    return len(lasting) == 1 and len(passing) <= 1


def _table_of(rows: list[_Row]) -> str:
    first = rows[0].terms
    numbers = sorted(range(len(rows)), key=lambda rank: (rank > 0 and rows[rank].terms == first, rank))
    shown = sorted(numbers[:MAX_ROWS_IN_MESSAGE])
    names = ("seed", "length", "epoch", "drop_last", "shuffle", "position")
    cells = [("rank", *names), *((str(r), *(str(getattr(rows[r].terms, name)) for name in names)) for r in shown)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    if len(rows) > len(shown):
        lines.append(f"... and {len(rows) - len(shown)} more ranks")
    table = "\n".join(f"  {line}" for line in lines)
    return (
        "the ranks do not hold the same order, so samples would be lost and others repeated:\n"
        f"{table}\n"
        "Make the sampler with the same dataset, seed, shuffle and drop_last on every rank, and call set_epoch, or "
        "load the same state, on all of them before the pass."
    )

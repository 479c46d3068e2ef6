"""The one kind of state that all orders have, and a pass over an order.

A state counts in the *global* order of an epoch, which (seed, epoch) fix for any number of ranks: so it is equal on
all ranks at a step, and loads into any world. What remains of the order is then dealt anew to the ranks that are there.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload.errors import UsageError
from fastload.samplers.agreement import Agreement, Terms
from fastload.samplers.arguments import require_epoch
from fastload.samplers.permutation import BLOCK
from fastload.units import brief

SCHEMA = "fastload.order/1"

Take = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""The sample numbers at positions of a global order."""


@dataclass(frozen=True)
class OrderState:
    """How far an order has been delivered.

    Attributes:
        kind: how the order is made of (seed, epoch): states of one kind fit all samplers of it.
        seed: of the order; None where it is not settled yet.
        epoch: of the order.
        delivered: how many of the global order's samples reached the user; padding does not count.
        length: samples in the global order.
        shuffle: whether the order is shuffled.
        fingerprint: that of the dataset; None where it has none.
    """

    kind: str
    seed: int | None
    epoch: int
    delivered: int
    length: int
    shuffle: bool
    fingerprint: str | None

    def to_dict(self) -> dict[str, Any]:
        """Of plain values, so that JSON can hold it."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Any) -> OrderState:
        """What a saved dict says.

        Raises:
            UsageError: it is no dict, of another schema, lacks a key, or holds a value that cannot be.
        """
        if not isinstance(state, Mapping):
            raise UsageError(f"state is {brief(state)}: give the dict that state_dict() returned")
        if state.get("schema") != SCHEMA:
            raise UsageError(
                f"state: schema is {brief(state.get('schema'))}, expected {SCHEMA!r}: it was not saved by such a "
                "sampler, or by another version of it"
            )
        read = cls(**{key: _value_of(state, key, *rule) for key, rule in _RULES.items()})
        if read.delivered > read.length:
            raise UsageError(f"state: delivered is {read.delivered}, more than its length of {read.length}")
        return read


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "kind": ("text", lambda value: isinstance(value, str)),
    "seed": ("an integer or None", lambda value: value is None or _is_integer(value)),
    "epoch": ("an integer from 0 on", lambda value: _is_integer(value) and 0 <= value < 1 << 63),
    "delivered": ("an integer from 0 on", lambda value: _is_integer(value) and value >= 0),
    "length": ("an integer from 0 on", lambda value: _is_integer(value) and value >= 0),
    "shuffle": ("true or false", lambda value: isinstance(value, bool)),
    "fingerprint": ("text or None", lambda value: value is None or isinstance(value, str)),
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _value_of(state: Mapping[str, Any], key: str, expected: str, fits: Callable[[Any], bool]) -> Any:
    if key not in state:
        raise UsageError(f"state: the key {key!r} is missing; give the whole dict that state_dict() returned")
    if not fits(state[key]):
        raise UsageError(f"state: {key} is {brief(state[key])}, expected {expected}")
    return state[key]


@dataclass(frozen=True)
class Deal:
    """How what remains of a global order is dealt: rank r takes every num_replicas-th, beginning with the r-th.

    The end is padded by repeating the epoch's order from its beginning, as often as needed, or cut off (drop_last).
    So a pass that is taken up by as many ranks as before is the same, padding too, as one that was never broken off.
    """

    rank: int
    num_replicas: int
    drop_last: bool

    def share(self, remaining: int) -> int:
        """Samples of each rank, when so many remain."""
        if self.drop_last:
            return remaining // self.num_replicas
        return -(-remaining // self.num_replicas)

    def positions(self, first: int, last: int, start: int, length: int) -> NDArray[np.int64]:
        """Global positions of this rank's samples number `first` to `last` - 1 of a pass that begins at `start`."""
        places = np.arange(first, last, dtype=np.int64) * self.num_replicas + (start + self.rank)
        if places.size and places[-1] >= length:
            places %= length
        return places


class _Place(NamedTuple):
    """A place in an epoch: seed None is the one that the next pass will have."""

    epoch: int
    delivered: int
    seed: int | None = None


class Pass:
    """One pass over this rank's part of an epoch: an iterable, once, of sample numbers, computed in blocks.

    Independent of other passes and of what happens to its sampler meanwhile.

    Attributes:
        epoch: of the order.
        seed: of the order.
        start: position in the global order at which it begins.
    """

    def __init__(self, order: ResumableOrder, number: int, place: tuple[int, int, int], length: int) -> None:
        self.seed, self.epoch, self.start = place
        self._order = order
        self._number = number
        self._length = length
        self._deal = order._deal()
        self._size = self._deal.share(length - self.start)
        self._indices = self._compute(order._order_of(length, self.seed, self.epoch))

    def __len__(self) -> int:
        """Samples of this rank from `start` on, padding included; it does not change."""
        return self._size

    def __iter__(self) -> Iterator[int]:
        return self._indices

    def delivered(self, count: int) -> None:
        """Tell the sampler that in all `count` samples of this pass reached the user: its state is then that.

        Ignored when a newer pass has delivered already, or a state was loaded since this one began.
        """
        if count > 0:
            self._order._reach(self._number, self._place_after(count))

    def state_after(self, count: int) -> dict[str, Any]:
        """The state when `count` samples of this pass have been delivered, on each rank. Changes nothing."""
        return self._order._describe(self._place_after(count)).to_dict()

    def _place_after(self, count: int) -> _Place:
        reached = self.start + min(max(count, 0), self._size) * self._deal.num_replicas
        return _Place(self.epoch, min(reached, self._length), self.seed)

    def _compute(self, take: Take) -> Iterator[int]:
        for first in range(0, self._size, BLOCK):
            last = min(first + BLOCK, self._size)
            yield from take(self._deal.positions(first, last, self.start, self._length)).tolist()


class ResumableOrder:
    """What all orders share: epochs, passes and their state. A mixin that stands before torch's class.

    A loader takes `begin_pass` and tells the pass what it delivered. Plain iteration, as under torch's own
    DataLoader, counts each index as delivered when it is taken: that loader prefetches, so a state saved under it
    is ahead of what the user has seen.

    Only one thread at a time may begin passes or load states; `Pass.delivered` and `state_dict` may be called by
    others, as every place is one object that is replaced.
    """

    kind = "permutation"
    """How the order is made of (seed, epoch): a state of another kind is refused."""

    _epoch = 0  # of the next pass
    _start = 0  # where the next pass begins, once: a restored place
    _reached: _Place | None = None  # what the newest delivering pass reached, since set_epoch or load_state_dict
    _spent = False  # whether something of _epoch was delivered
    _passes = 0  # how many were begun
    _newest = 0  # number of the newest pass that delivered; older ones are not heard
    _repeats = False  # whether a plain pass of _epoch was begun, and set_epoch not called since
    _running: dict[int, int]  # plain passes that are under way: number -> indices taken
    _warned: frozenset[str] = frozenset()
    _agreement: Agreement | None = None

    # What a kind of order says of itself

    @abstractmethod
    def _deal(self) -> Deal:
        """How the order is dealt to ranks."""

    @abstractmethod
    def _count(self) -> int:
        """Samples in the global order."""

    @abstractmethod
    def _order_of(self, length: int, seed: int, epoch: int) -> Take:
        """The global order of an epoch."""

    @abstractmethod
    def _is_shuffled(self) -> bool:
        """Whether the order differs from epoch to epoch."""

    @abstractmethod
    def _find_seed(self) -> int | None:
        """The seed that a pass would have now; None where only beginning one settles it."""

    @abstractmethod
    def _settle_seed(self) -> int:
        """The seed of the pass that begins."""

    @abstractmethod
    def _adopt_seed(self, seed: int) -> None:
        """Go on with a loaded state's seed. Raises `UsageError` where another was asked for."""

    @abstractmethod
    def _source(self) -> Any:
        """The dataset whose samples are ordered."""

    # Epochs

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of this epoch.

        The epoch of a loaded state keeps the place in it; any other begins at 0, as does one that was gone through.

        Raises:
            TypeError: not an integer.
            UsageError: a negative epoch.
        """
        epoch = require_epoch(epoch)
        if epoch != self._epoch:
            self._warn_of_running(epoch)
            self._start = 0
        if epoch != self._epoch or (self._reached and self._is_over(self._reached.delivered)):
            self._reached = None
        self._epoch = epoch
        self._spent = self._repeats = False

    # Passes

    def begin_pass(self, *, advance: bool = False) -> Pass:
        """A pass over this rank's part of the epoch, from the restored place when nothing was delivered since.

        In a process group of more than one rank the first pass compares what the ranks hold, and waits some
        seconds for ranks that do not come.

        Args:
            advance: go on to the next epoch first, when something of this one was delivered by an earlier pass
                and `set_epoch` was not called since.

        Raises:
            UsageError: the ranks hold different orders, or the dataset has another length than before.
        """
        if advance and self._spent:
            self.set_epoch(self._epoch + 1)
        length, seed = self._count(), self._settle_seed()
        if self._agreement is not None:
            terms = Terms(seed, length, self._epoch, self._deal().drop_last, self._is_shuffled(), self._start)
            self._agreement.check(type(self).__name__, terms)
        self._passes += 1
        return Pass(self, self._passes, (seed, self._epoch, self._start), length)

    def __iter__(self) -> Iterator[int]:
        """A plain pass: every index counts as delivered when it is taken."""
        self._warn_of_repeat()
        current = self.begin_pass()
        number, size = self._passes, len(current)
        running = self._plain_passes()
        try:
            for count, index in enumerate(current, 1):
                running[number] = count
                if count == size:
                    del running[number]
                current.delivered(count)
                yield index
        finally:
            running.pop(number, None)

    def _reach(self, number: int, place: _Place) -> None:
        if number < self._newest:
            return
        self._newest = number
        self._reached = place
        if place.epoch == self._epoch:
            self._start = 0
            self._spent = True

    # State

    def state_dict(self) -> dict[str, Any]:
        """The state: plain values, equal on all ranks at a step. `load_state_dict` takes it in any world."""
        return self._describe(self._reached or _Place(self._epoch, self._start)).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was saved. Passes that were begun before are no longer heard.

        A state at the end of an epoch means the beginning of the next one.

        Raises:
            UsageError: it is not such a state, or one of another dataset, length, seed or shuffle.
        """
        loaded = OrderState.from_dict(state)
        self._refuse_other(loaded)
        if loaded.seed is not None:
            self._adopt_seed(loaded.seed)
        over = self._is_over(loaded.delivered)
        self._epoch, self._start = (loaded.epoch + 1, 0) if over else (loaded.epoch, loaded.delivered)
        self._reached = None
        self._newest = self._passes + 1
        self._spent = self._repeats = False

    def __getstate__(self) -> dict[str, Any]:
        """Copies hold the state; passes that are under way stay with the original."""
        return {name: value for name, value in self.__dict__.items() if name != "_running"}

    def _describe(self, place: _Place) -> OrderState:
        seed = self._find_seed() if place.seed is None else place.seed
        return OrderState(
            self.kind, seed, place.epoch, place.delivered, self._count(), self._is_shuffled(), self._fingerprint()
        )

    def _refuse_other(self, loaded: OrderState) -> None:
        own = self._describe(_Place(0, 0))
        for key in ("kind", "length", "shuffle", "fingerprint"):
            there, here = getattr(loaded, key), getattr(own, key)
            if there != here and not (key == "fingerprint" and None in (there, here)):
                raise UsageError(
                    f"state: {key} is {there!r}, but this {type(self).__name__}'s is {here!r}: {_FIX[key]}"
                )

    def _is_over(self, delivered: int) -> bool:
        """Whether so many delivered leave nothing for the ranks; an epoch that gives nothing at all is never over."""
        return delivered > 0 and self._deal().share(self._count() - delivered) == 0

    def _fingerprint(self) -> str | None:
        fingerprint = getattr(self._source(), "fingerprint", None)
        return fingerprint if isinstance(fingerprint, str) else None

    # Warnings, each once a sampler

    def _plain_passes(self) -> dict[int, int]:
        running: dict[int, int] = self.__dict__.setdefault("_running", {})
        return running

    def _warn_of_running(self, epoch: int) -> None:
        taken = max(self._plain_passes().values(), default=0)
        if taken and self._is_shuffled():
            self._warn_once(
                "running",
                f"set_epoch({epoch}) comes too late for the running pass of epoch {self._epoch}, of which "
                f"{taken} indices were taken: it keeps its order, and epoch {epoch} is that of "
                "the next one. Call set_epoch before iter(). (A pass that was ended early on purpose is all right.)",
            )

    def _warn_of_repeat(self) -> None:
        if self._repeats and self._is_shuffled() and self._count() > 1:
            self._warn_once(
                "repeat",
                f"this is another pass of epoch {self._epoch}: its order is that of the pass before. Call "
                "sampler.set_epoch(epoch) before each epoch, or use fastload.DataLoader, which does it",
            )
        self._repeats = True

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned |= {what}
            warnings.warn(f"{type(self).__name__}: {message}", UserWarning, stacklevel=4)


_FIX = {
    "kind": "load it into a sampler of the kind that saved it",
    "length": "it was saved with another dataset, or one that has grown or shrunk since",
    "shuffle": "make the sampler with the same shuffle=",
    "fingerprint": "it was saved with another dataset",
}

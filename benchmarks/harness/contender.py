"""What a benchmark runs: contenders and limits, and what they give for a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from benchmarks.harness.delivery import Content, Delivery

Batch = Mapping[str, Any]


@runtime_checkable
class Loader(Protocol):
    """What a peer that delivers batches opens."""

    def epoch(self, seed: int) -> Iterable[Batch]:
        """All samples once, in an order that the seed gives, as mappings of field names to arrays or tensors."""
        ...


@dataclass(frozen=True)
class Amount:
    """What one run of a job did."""

    samples: int
    nbytes: int


class Job:
    """What a peer that does one piece of work a round opens; a limit too."""

    def prepare(self) -> None:
        """What goes before each run and is not timed."""

    def run(self) -> Amount:
        """The work that is timed."""
        raise NotImplementedError

    def content(self) -> Content | None:
        """What the last run made, to be held against the other contenders; None: nothing to compare."""
        return None

    def notes(self) -> Mapping[str, str]:
        """How the last run was done, for the report."""
        return {}

    def finish(self) -> None:
        """What goes after the last run."""


@dataclass(frozen=True)
class Entry:
    """Something to run in a process of its own.

    Attributes:
        name: short and without spaces; `family:variant` where there are several of a kind.
        target: `module:function`, called there with the options; it gives a `Loader` or a `Job`. Only that process
            imports the module; one that is not installed makes the entry unavailable.
        options: keyword arguments, plain JSON values.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender(Entry):
    """A peer with its options.

    Attributes:
        delivery: what its batches hold; None for a job.
    """

    delivery: Delivery | None = None


@dataclass(frozen=True)
class Limit(Entry):
    """What the machine allows, measured in the same run.

    Attributes:
        per: whether it limits bytes or samples a second.
        binding: whether contenders are held against it; otherwise it is only shown.
    """

    per: Literal["bytes", "samples"] = "bytes"
    binding: bool = True


@dataclass(frozen=True)
class Figures:
    """What was measured in one turn of one entry.

    Attributes:
        seconds: wall time of the whole turn.
        samples: samples delivered.
        nbytes: bytes delivered.
        first_batch_s: seconds until the first batch was there; None for jobs.
        consume_s: seconds that the consumer took, the same work for all; None for jobs.
        cpu_s: CPU seconds of the process tree in the turn.
        idle_cpu_s: CPU seconds of the tree since its turn before, while others ran.
        pss_bytes: proportional memory of the tree after the turn; None where the system does not say, and for jobs,
            whose processes have ended by then.
        private_bytes: its private memory.
        content: what was delivered, where that was asked.
        notes: how it was done.
    """

    seconds: float
    samples: int
    nbytes: int
    first_batch_s: float | None
    consume_s: float | None
    cpu_s: float
    idle_cpu_s: float
    pss_bytes: int | None
    private_bytes: int | None
    content: Content | None
    notes: Mapping[str, str]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Figures:
        """The figures out of a child's answer."""
        content = values["content"]
        return cls(**{**values, "content": None if content is None else Content.from_json(content)})


@dataclass(frozen=True)
class Turn:
    """What a child is asked to do: one epoch or one run.

    Attributes:
        seed: for the order of samples.
        check: whether to digest what is delivered.
    """

    seed: int
    check: bool

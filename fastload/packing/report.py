"""What packing, verifying and unpacking report: frozen values that print and turn into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fastload._version import __version__
from fastload.schema import Problem


@dataclass(frozen=True)
class Progress:
    """How far a run is; given to the `progress` callback after each sample.

    Attributes:
        stage: "check", "pack", "verify" or "unpack".
        samples: how many samples are done.
        total_samples: how many there are.
        done_bytes: bytes done.
        total_bytes: bytes there are.
    """

    stage: str
    samples: int
    total_samples: int
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class _Report:
    """Common form of the reports: `to_json` gives all attributes as plain values, the schema's name first."""

    verb: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        head = {"schema": f"fastload.{self.verb}/1", "fastload_version": __version__}
        return {**head, **{name: _plain(getattr(self, name)) for name in self.__dataclass_fields__ if name != "verb"}}


@dataclass(frozen=True)
class PackReport(_Report):
    """What a pack did.

    Attributes:
        root: the dataset's folder.
        layout: the layout that the source was read with.
        samples: number of samples packed.
        points: number of points in them.
        splits: number of samples of each split.
        shards: number of shards.
        bytes: size of the shards.
        source_bytes: size of the source files that are in it.
        seconds: how long it took.
        resumed_shards: how many finished shards of an interrupted pack were taken up.
        problems: what was left out on request (`skip_bad`), or passed on request (`force`).
        notes: what the user should know although it is no error.
        ignored: source files that are neither sample nor attachment, relative to the source.
        nonfinite: how many NaN and infinite values were packed as they are.
    """

    verb = "pack"
    root: str
    layout: str
    samples: int
    points: int
    splits: Mapping[str, int]
    shards: int
    bytes: int
    source_bytes: int
    seconds: float
    resumed_shards: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    nonfinite: int


@dataclass(frozen=True)
class VerifyReport(_Report):
    """What verifying found.

    Attributes:
        root: the dataset's folder.
        ok: whether nothing is wrong.
        quick: whether only sizes, headers and index were looked at.
        samples: number of samples that were looked at.
        shards: number of shards that were looked at.
        bytes: bytes that were read.
        seconds: how long it took.
        problems: one for each thing that is wrong.
    """

    verb = "verify"
    root: str
    ok: bool
    quick: bool
    samples: int
    shards: int
    bytes: int
    seconds: float
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class UnpackReport(_Report):
    """What unpacking wrote.

    Attributes:
        root: the dataset's folder.
        out: the folder that was written to.
        samples: number of samples written.
        attachments: number of attachments written.
        files: number of files written.
        bytes: size of the files.
        seconds: how long it took.
    """

    verb = "unpack"
    root: str
    out: str
    samples: int
    attachments: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RepairReport(_Report):
    """What a repair found and did.

    Attributes:
        root: the dataset's folder.
        ok: whether nothing damaged remains in the dataset.
        dry_run: whether nothing was written.
        samples: number of samples that the dataset has now; 0 where it could not be rebuilt.
        shards: number of shards that it has now.
        rebuilt: files that were written anew, or would be, relative to `root`.
        set_aside: names under which the files that were replaced still lie there.
        dropped: what was left out on request: one problem for each sample, attachment or shard.
        problems: what is still damaged.
        notes: what the user should know although it is no error.
        seconds: how long it took.
    """

    verb = "repair"
    root: str
    ok: bool
    dry_run: bool
    samples: int
    shards: int
    rebuilt: tuple[str, ...]
    set_aside: tuple[str, ...]
    dropped: tuple[Problem, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    seconds: float


def _plain(value: Any) -> Any:
    if isinstance(value, Problem):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value

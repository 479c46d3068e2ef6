"""Every error that fastload raises on purpose, as one tree.

::

    FastloadError
    ├── UsageError (ValueError)                a wrong argument, option or combination of them
    ├── SourceError (ValueError)               files to be packed are not what they should be; .problems
    │   ├── FormatError                        one file's bytes
    │   └── SchemaError                        fields: names, kinds, dtypes, shapes
    ├── DatasetError                           a packed dataset on disk
    │   ├── DatasetNotFoundError (FileNotFoundError)   none there, or an unfinished pack
    │   ├── VersionError                       written by a newer fastload
    │   ├── CorruptError                       damaged, cut or exchanged files; .shard .sample .field
    │   └── LockedError                        another pack is writing to the same folder
    ├── SampleError                            one sample cannot be given as asked
    │   └── LabelError                         labels that do not fit their scan, or that the label map does not know
    ├── CollateError (RuntimeError)            samples that cannot be joined to a batch
    └── ResourceError (RuntimeError)           a limit of the machine: descriptors, disk, memory

Each message names the file or setting, what was found, what was expected and what to do. All of them
survive pickling, so they arrive whole from worker processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.schema import Problem

MAX_PROBLEMS_IN_MESSAGE = 20
"""How many problems an error's text lists before it counts the rest; `.problems` holds them all."""


class FastloadError(Exception):
    """Root of all errors that fastload raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from message and attributes: subclasses take keyword-only arguments."""
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[FastloadError], args: tuple[Any, ...], state: dict[str, Any]) -> FastloadError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(FastloadError, ValueError):
    """A wrong argument or option, or options that contradict each other."""


class SourceError(FastloadError, ValueError):
    """Source files that cannot be packed as they are.

    Attributes:
        problems: every bad thing that was found, one `Problem` each.
    """

    problems: tuple[Problem, ...]

    def __init__(self, message: str = "", *, problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message or list_problems(self.problems))


class FormatError(SourceError):
    """One file's bytes are not what its format says."""


class SchemaError(SourceError):
    """A field's name, kind, dtype or shape is not allowed, or not what the schema says."""


class DatasetError(FastloadError):
    """A packed dataset cannot be used."""


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """There is no packed dataset at this path, or only an unfinished one."""


class VersionError(DatasetError):
    """The dataset was written in a newer format than this program knows."""


class CorruptError(DatasetError):
    """A file of the dataset is missing, cut short, damaged or exchanged.

    Attributes:
        shard: the file, relative to the dataset's folder.
        sample: name of the sample, where one is known.
        field: name of the field, where one is known.
    """

    shard: str | None
    sample: str | None
    field: str | None

    def __init__(
        self, message: str = "", *, shard: str | None = None, sample: str | None = None, field: str | None = None
    ) -> None:
        self.shard, self.sample, self.field = shard, sample, field
        super().__init__(message)


class LockedError(DatasetError):
    """Another process is writing to the dataset's folder."""


class SampleError(FastloadError):
    """A sample cannot be given as asked."""


class LabelError(SampleError):
    """A sample's labels, or predictions for it, do not fit it or the label map."""


class CollateError(FastloadError, RuntimeError):
    """Samples cannot be joined to a batch."""


class ResourceError(FastloadError, RuntimeError):
    """A limit of the machine or container was met."""


def list_problems(problems: Sequence[Problem]) -> str:
    """Text of several problems, one a line, the rest counted."""
    if len(problems) == 1:
        return str(problems[0])
    lines = [f"{len(problems)} problems:"]
    lines += [f"  {problem}" for problem in problems[:MAX_PROBLEMS_IN_MESSAGE]]
    if len(problems) > MAX_PROBLEMS_IN_MESSAGE:
        lines.append(f"  ... and {len(problems) - MAX_PROBLEMS_IN_MESSAGE} more")
    return "\n".join(lines)

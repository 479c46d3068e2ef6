"""What a worker process started by spawn or forkserver cannot be sent, said before pickle says it."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

_LOCAL = ("<lambda>", "<locals>")
"""What the qualified name of a function or class has in it that no module gives by name."""


def check_sendable(callback: Any, argument: str) -> None:
    """See that a worker process which is being started now can be sent `callback`; nothing at other times.

    Only what never can be is refused. Whatever else a callback holds is left to pickle, which knows locks and
    shared memory; and so is all pickling by other means, as some picklers send lambdas.

    Raises:
        pickle.PicklingError: a lambda, or something defined inside a function; names `argument`.
    """
    if not _starts_worker():
        return
    reducers = ForkingPickler(io.BytesIO()).dispatch_table
    found = next((part for part in _parts(callback) if _is_local(part) and type(part) not in reducers), None)
    if found is not None:
        raise pickle.PicklingError(
            f"{argument}={callback!r} cannot be sent to a worker process that spawn or forkserver starts:"
            f" {_name(found)} is a lambda or defined inside a function; use a function or class defined at the top"
            " of a module, or start the workers by fork (DataLoader(..., multiprocessing_context='fork'))"
        )


def _starts_worker() -> bool:
    """Whether Python's own multiprocessing pickles the arguments of a process right now, in this thread."""
    # Others (joblib's loky) mark their start-up in the same place and have picklers of their own.
    return type(get_spawning_popen()).__module__.startswith("multiprocessing.")


def _parts(callback: Any) -> Iterator[Any]:
    """What pickle goes through in any case: the function, and what a partial or a bound method holds."""
    if isinstance(callback, functools.partial):
        for part in (callback.func, *callback.args, *callback.keywords.values()):
            yield from _parts(part)
    elif isinstance(callback, types.MethodType):
        yield from _parts(callback.__self__)
    else:
        yield callback


def _is_local(part: Any) -> bool:
    if not isinstance(part, (type, types.FunctionType)):
        part = type(part)
        if any(getattr(part, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
            return False  # it says itself how it is pickled
    return any(word in part.__qualname__ for word in _LOCAL)


def _name(part: Any) -> str:
    return str(getattr(part, "__qualname__", type(part).__qualname__))

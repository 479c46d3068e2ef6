"""Errors of the system that are not the file's fault: too many open files, no memory."""

from __future__ import annotations

import errno
import os
import resource

from fastload.errors import ResourceError

_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def raise_if_exhausted(error: OSError, path: str | os.PathLike[str]) -> None:
    """Raise `ResourceError` when `error` says that descriptors or memory ran out, and return otherwise.

    Such an error says nothing of the file at `path`: to count it as a bad file would leave good ones out.
    """
    if error.errno in _DESCRIPTORS:
        raise ResourceError(
            f"{os.fspath(path)}: cannot be opened, too many open files ({_describe_descriptors(error)}); something"
            " in this process holds them; raise the limit with `ulimit -n`, or close what is not needed"
        ) from error
    if error.errno == errno.ENOMEM:
        raise ResourceError(
            f"{os.fspath(path)}: cannot be read, out of memory; close other programs, or raise the limit (ulimit -v,"
            " the container's memory)"
        ) from error


def _describe_descriptors(error: OSError) -> str:
    if error.errno == errno.ENFILE:
        return "of the whole system"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"soft limit {soft}, hard limit {hard}"

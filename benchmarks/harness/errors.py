"""What can go wrong in a benchmark, apart from a contender's own troubles."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message says what to do."""


class UsageError(BenchmarkError):
    """A wrong option, or options that contradict each other or what is on disk."""


class Unavailable(Exception):  # noqa: N818 - a state of the machine, not an error
    """What is to be measured is not there: a peer that is not installed, a limit that cannot be known here."""

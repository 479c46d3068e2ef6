"""YAML and JSON files of settings, read strictly: what a reader would take silently for less is refused.

Both formats say that the keys of a mapping differ, and both usual readers let the last of two win.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from typing import Any

from fastload.oserrors import raise_if_exhausted
from fastload.regular import read_regular

MAX_INTEGER = 2**64
"""Larger whole numbers mean nothing here, and Python refuses to print very large ones."""
_SPECIAL_KEYS = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
"""Of `<<` and `=`: they have no value of their own."""


class ContentError(ValueError):
    """A file's text is not YAML or JSON, or says one thing twice. The message does not name the file."""


def read_content(path: str | os.PathLike[str]) -> Any:
    """What a YAML file holds, or a JSON file where the name ends in `.json`.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ResourceError: no descriptor is free.
        ContentError: not text, not of that form, a key that comes twice.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise_if_exhausted(error, path)
        raise
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContentError(f"is not text ({error})") from error
    return parse_json(text) if os.fspath(path).endswith(".json") else parse_yaml(text)


def parse_json(text: str) -> Any:
    """What JSON text means. Raises `ContentError`."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except ContentError:
        raise
    except (ValueError, RecursionError) as error:
        raise _unparsable(error) from error


def parse_yaml(text: str) -> Any:
    """What YAML text means, plain values only. Raises `ContentError`."""
    import yaml  # only who reads a file pays for it

    try:
        return yaml.load(text, _strict_loader())  # a safe loader
    except ContentError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unparsable(error) from error


@functools.cache
def _strict_loader() -> Any:
    import yaml

    class StrictLoader(yaml.SafeLoader):
        """Keys are compared as a mapping is read, before merge keys (`<<`) bring in others on purpose."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            lines: dict[Any, int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag not in _SPECIAL_KEYS:
                    value, line = self.construct_object(key), key.start_mark.line + 1
                    if value in lines:
                        raise _repeated(key.value, f" (lines {lines[value]} and {line})")
                    lines[value] = line
            return node

        def construct_yaml_int(self, node: Any) -> Any:
            # YAML 1.1 reads 010 as octal, 8: a sequence called 010 would become another one, unseen.
            digits = str(node.value).lstrip("+-")
            if digits.isdigit() and digits.startswith("0") and digits != "0":
                return str(node.value)
            return _bounded(super().construct_yaml_int(node))

    StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
    return StrictLoader


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _repeated(key)
        found[key] = value
    return found


def _integer(digits: str) -> int:
    return _bounded(int(digits))


def _bounded(value: int) -> int:
    if abs(value) > MAX_INTEGER:
        raise ContentError("holds a whole number beyond 64 bits")
    return value


def _repeated(key: str, where: str = "") -> ContentError:
    return ContentError(f"key {key!r} comes twice{where}")


def _unparsable(error: Exception) -> ContentError:
    return ContentError(f"cannot be parsed ({' '.join(str(error).split())})")

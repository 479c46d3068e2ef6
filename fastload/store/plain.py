"""JSON from a file that may be damaged or made to do harm: its form checked, what is wrong said in plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Types = Mapping[str, tuple[type, ...]]
"""For each key that has to be there the types that its value may have."""
_WORDS: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number with a fraction",
    bool: "true or false",
    type(None): "null",
}


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object that `data`, ASCII, holds. Raises `ValueError` that says in plain words why it is none."""
    try:
        values = json.loads(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is {data[error.start]:#04x}, which is not ASCII") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON from line {error.lineno}, column {error.colno} on") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except ValueError as error:  # Python reads no number of more than some thousand digits
        raise ValueError("a number of thousands of digits") from error
    if type(values) is not dict:
        raise ValueError(f"{describe(values)} instead of an object")
    return values


def check_object(value: Any, types: Types, where: str) -> dict[str, Any]:
    """What an object has under these keys, once it has them all; others are left out. Raises `ValueError`."""
    check_type(value, dict, where=where)
    for key, allowed in types.items():
        if key not in value:
            raise ValueError(f"{where} has no {key!r}")
        check_type(value[key], *allowed, where=f"{key!r} of {where}")
    return {key: value[key] for key in types}


def check_list(value: Any, *types: type, where: str) -> tuple[Any, ...]:
    """The entries of a list, once each has one of these types. Raises `ValueError`."""
    check_type(value, list, where=where)
    for entry in value:
        check_type(entry, *types, where=f"an entry of {where}")
    return tuple(value)


def check_type(value: Any, *types: type, where: str) -> None:
    """See that a value has one of these types; true and false are no numbers. Raises `ValueError`."""
    if type(value) not in types:
        raise ValueError(f"{where} is {describe(value)}; expected {' or '.join(_WORDS[kind] for kind in types)}")


def describe(value: Any) -> str:
    """What a JSON value is, in words."""
    return _WORDS.get(type(value), "a value of an unknown kind")

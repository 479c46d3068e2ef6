from __future__ import annotations

import pytest

from fastload.errors import UsageError
from fastload.formats.registry import FORMATS, get_format


def test_formats_are_found_by_their_names() -> None:
    assert {name: get_format(name).parts for name in FORMATS} == {
        "kitti_bin": ("points",),
        "semantickitti_label": ("semantic", "instance"),
    }


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'pcd' is unknown.*kitti_bin, semantickitti_label"):
        get_format("pcd")

"""Class ids that a label map does not know: kept as they are on disk, named when mapped, never wrapped or zeroed."""

import re
from collections import Counter

import numpy as np
import pytest

import fastload
from fastload import LabelMap, PackedDataset
from fastload.errors import LabelError
from tests.support import tree_bytes, write_tree

KNOWN = (0, 1, 10, 40, 48, 70, 99, 252, 259)
UNKNOWN = (
    (7,),  # inside the table, in a gap
    (2, 9, 12, 251),
    (260, 261, 300),  # behind its end
    (65535,),  # the last that 16 bits hold
    (7, 261, 65535, 32768),
)


@pytest.mark.parametrize("instances", [False, True])
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_ids_are_named_with_their_points_and_become_something_only_on_request(tmp_path, unknown, instances):
    """With instance numbers over them they are the same ids; the scans that have none are read as ever."""
    rng = np.random.default_rng(sum(unknown))
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 60 for i in range(3)})
    classes = rng.choice((*KNOWN, *unknown), 60)
    classes[: len(unknown)] = unknown
    path = source / "sequences/00/labels/000001.label"
    (classes | (rng.integers(1, 65536, 60) << 16 if instances else 0)).astype("<u4").tofile(path)
    fastload.pack(source, tmp_path / "d")

    assert PackedDataset(tmp_path / "d")[1]["semantic"].tolist() == classes.tolist()
    dataset = PackedDataset(tmp_path / "d", label_map="semantickitti")
    assert (len(dataset[0]["semantic"]), len(dataset[2]["semantic"])) == (60, 60)
    with pytest.raises(LabelError, match="sequences/00/velodyne/000001") as caught:
        dataset[1]
    named = dict(re.findall(r"(\d+) \((\d+) points?\)", str(caught.value)))
    counts = Counter(classes.tolist())
    assert named == {str(label): str(counts[label]) for label in unknown}
    for ignore_index in (255, 0, -1, 19):
        mapped = PackedDataset(tmp_path / "d", label_map="semantickitti", ignore_index=ignore_index)[1]["semantic"]
        table = dict(LabelMap.load("semantickitti").train_ids)
        assert mapped.tolist() == [table.get(int(label), ignore_index) for label in classes]
    fastload.unpack(tmp_path / "d", tmp_path / "again")
    assert tree_bytes(tmp_path / "again") == tree_bytes(source)

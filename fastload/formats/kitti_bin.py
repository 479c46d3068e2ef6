"""KITTI `.bin`: one Velodyne scan, x, y, z and reflectance as float32.

As the readme of the KITTI raw data development kit describes it. KITTI object and odometry, SemanticKITTI and
the output of many converters use it too.
"""

from __future__ import annotations

from fastload.formats.float_rows import FloatRows

KITTI_BIN = FloatRows("kitti_bin", ("x", "y", "z", "intensity"))

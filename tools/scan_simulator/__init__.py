"""A rotating 64-beam LiDAR, ray-cast in made-up streets, written as SemanticKITTI sequences.

`street` is the curve and the drive along it, `things` what stands in a street, `scene` where all of it is at
a time, `furnish` what draws it from a seed; `rays` and `meet` cast the rays, `lidar` is the sensor, `write`
the files. numpy only.
"""

from scan_simulator.furnish import build_scene
from scan_simulator.lidar import scan
from scan_simulator.scene import Scene
from scan_simulator.write import SimulationError, simulate

__all__ = ["Scene", "SimulationError", "build_scene", "scan", "simulate"]

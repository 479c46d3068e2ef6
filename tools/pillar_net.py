"""A small network that gives each point of a batch of LiDAR scans scores for its class; made to be fast on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

CELL_M, CELLS = 0.8, 128  # the grid seen from above: 102 m x 102 m around the sensor


class PillarNet(nn.Module):
    """Pools the points' features in a grid seen from above, looks around there, and tells the points what it saw."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        wide = 2 * width
        self.points = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.near = nn.Sequential(conv(width, width), conv(width, width))
        self.far = nn.Sequential(conv(width, wide, 2), conv(wide, wide), conv(wide, width), nn.Upsample(scale_factor=2))
        self.both = conv(wide, width)
        self.head = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, classes))

    def forward(self, points: Tensor, offset: Tensor) -> Tensor:
        """(N, classes) scores of (N, 4) points; scan b of the batch has points offset[b - 1] to offset[b]."""
        scan = torch.bucketize(torch.arange(len(points), device=points.device), offset, right=True)
        x, y, z, intensity = points.unbind(1)
        column, row = ((v / CELL_M + CELLS / 2).long().clamp(0, CELLS - 1) for v in (x, y))
        cell = (scan * CELLS + row) * CELLS + column
        empty = z.new_zeros(len(offset) * CELLS**2)
        low = empty.scatter_reduce(0, cell, z, "amin", include_self=False)[cell]
        high = empty.scatter_reduce(0, cell, z, "amax", include_self=False)[cell]
        features = self.points(torch.stack([z, z - low, high - z, intensity, torch.hypot(x, y) / 50], 1))

        width = features.shape[1]
        grid = empty[:, None].expand(-1, width).scatter_reduce(0, cell[:, None].expand(-1, width), features, "mean")
        seen = self.near(grid.view(len(offset), CELLS, CELLS, width).permute(0, 3, 1, 2))
        seen = self.both(torch.cat([seen, self.far(seen)], 1))
        around = embedding(cell, seen.permute(0, 2, 3, 1).flatten(0, 2))  # the row of each point's cell
        scores: Tensor = self.head(torch.cat([features, around], 1))
        return scores


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())

"""What the knobs of row operators and pooling windows are made from."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.space.fused import tile_axis
from tunefarm.compiler.space.nests import cost_of, fitting_lanes
from tunefarm.compiler.space.stages import LaneChoice, Stages, by_lines, inner_lane, lane_width
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import IterVar
from tunefarm.compiler.tir.schedule.tree import store_of


@dataclass(frozen=True, slots=True)
class RowSpace:
    """What the knobs of one function are made from: its stages, and where lanes may lie.

    ``lanes`` are the places if values that are read often are kept, as in ``stages``;
    ``lanes_without`` those if they are computed again.
    """

    stages: Stages
    lanes: tuple[LaneChoice, ...]
    lanes_without: tuple[LaneChoice, ...]
    target: Target

    @property
    def cost(self) -> float:
        """Vector instructions of one element in the most expensive stage."""
        return max(cost_of(store_of(n).value) for n in self.stages.nodes)

    def vectors(self, choice: LaneChoice) -> int:
        """Vectors along the lanes, at most."""
        width = lane_width(self.stages, self.target)
        if choice.axis is not None:
            return -(-choice.axis.extent // fitting_lanes(width, choice.axis.extent))
        axes = (inner_lane(self.stages, n, width) for n in self.stages.nodes)
        return max((-(-a.extent // fitting_lanes(width, a.extent)) for a in axes if a), default=1)

    def tiled(self, choice: LaneChoice) -> IterVar | None:
        return tile_axis(self.stages, choice)

    @property
    def line_cost(self) -> float:
        """Vector instructions of a row in the most expensive stage that may read whole lines, all
        written out; 0 if none may."""
        width = lane_width(self.stages, self.target)
        names = by_lines(self.stages, width).by_lines if self.target.has_masks(width) else ()
        nodes = [self.stages.node(name) for name in names]
        vectors = (cost_of(store_of(n).value) * n.iters[-1].extent / width for n in nodes)
        return max(vectors, default=0.0)

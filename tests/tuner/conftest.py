"""Synthetic tasks: contraction spaces with realistic knobs, and a machine that prices them.

The machine's rules are written apart from ``tuner/draft.py`` and know things that the draft and
the features do not (unrolling, code size, aliasing of power-of-two strides, loop order, packing,
a quirk of each config), so that a search has something to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from tunefarm.compiler.space.config import (
    Access,
    Columns,
    ConfigSpace,
    Constraint,
    Knob,
    Nest,
    Population,
    SketchSpace,
)
from tunefarm.compiler.target import Target
from tunefarm.tuner.search.population import row_keys

Array = NDArray[np.float64]
TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
LANES = 16
_PACK_CYCLES = 1.5


@dataclass(frozen=True)
class Landscape:
    """A contraction C[m, n] += A[m, k] B[k, n] of constant B, in two sketches."""

    m: int
    n: int
    k: int
    noise: float = 0.02
    quirk: float = 0.04

    @property
    def space(self) -> ConfigSpace:
        return ConfigSpace((self._sketch("gemm", False), self._sketch("gemm_split_k", True)))

    def seconds(self, rows: Population, rng: np.random.Generator | None = None) -> Array:
        """Measured seconds of rows; infinite for those that fail. Without ``rng``, no noise."""
        space = self.space
        seconds = np.zeros(len(rows))
        for index in range(len(space.sketches)):
            mine = np.flatnonzero(rows[:, 0] == index)
            seconds[mine] = self._price(space.columns(rows[mine], index), index == 1)
        unit = (row_keys(rows) >> np.uint64(11)).astype(np.float64) / 2.0**53
        seconds *= 1.0 + self.quirk * unit
        if rng is not None:
            seconds *= 1.0 + self.noise * np.abs(rng.standard_normal(len(rows)))
        return seconds

    def _sketch(self, name: str, split_k: bool) -> SketchSpace:
        knobs = [
            Knob("rows", tuple(range(1, 15))),
            Knob("vectors", tuple(v for v in (1, 2, 3, 4, 6) if v * LANES <= max(self.n, LANES))),
            Knob("m_block", (1, 2, 3, 4, 6, 8, 12, 16, 32)),
            Knob("n_block", (1, 2, 3, 4, 6, 8, 16)),
            Knob("k_block", tuple(k for k in (16, 32, 64, 128, 256, 512, 1024) if k <= self.k)),
            Knob("unroll", (1, 2, 4, 8)),
            Knob("order", ("mnk", "nmk", "kmn")),
            Knob("pack", (0, 1)),
        ]
        default: dict[str, int | str] = {"rows": 4, "vectors": 2, "m_block": 4, "n_block": 2}
        default |= {"k_block": 64, "unroll": 2, "order": "mnk", "pack": 0}
        for knob in knobs:
            if default[knob.name] not in knob.choices:
                default[knob.name] = knob.choices[0]
        if split_k:
            knobs.append(Knob("parts", (2, 4, 8)))
            default["parts"] = 2
        constraint = Constraint(
            "registers", lambda c: _number(c, "rows") * _number(c, "vectors") <= 40
        )
        return SketchSpace(
            name, 1, tuple(knobs), (constraint,), {"sketch": name, **default}, self._nest
        )

    def _tiles(self, c: Columns) -> dict[str, dict[str, Array]]:
        one = np.ones(len(c["rows"]))
        rows = np.minimum(_number(c, "rows"), self.m)
        wide = np.minimum(_number(c, "vectors") * LANES, self.n)
        deep = np.minimum(_number(c, "k_block"), self.k)
        m_block = np.minimum(rows * _number(c, "m_block"), self.m)
        n_block = np.minimum(wide * _number(c, "n_block"), self.n)
        return {
            "vector": {"m": one, "n": np.minimum(one * LANES, self.n), "k": one},
            "register": {"m": rows, "n": wide, "k": one},
            "l1": {"m": rows, "n": wide, "k": deep},
            "l2": {"m": m_block, "n": wide, "k": deep},
            "core": {"m": m_block, "n": n_block, "k": one * self.k},
        }

    def _grid(self, c: Columns) -> Array:
        tiles = self._tiles(c)["core"]
        grid = np.ceil(self.m / tiles["m"]) * np.ceil(self.n / tiles["n"])
        return grid * _number(c, "parts") if "parts" in c else grid

    def _nest(self, c: Columns) -> Nest:
        tiles = {
            level: {axis: tile.astype(np.int64) for axis, tile in axes.items()}
            for level, axes in self._tiles(c).items()
        }
        register = self._tiles(c)["register"]
        padded = np.ceil(self.m / register["m"]) * register["m"]
        padded = padded * np.ceil(self.n / register["n"]) * register["n"]
        return Nest(
            extents={"m": self.m, "n": self.n, "k": self.k},
            reduce=frozenset({"k"}),
            accesses=(
                Access("a", 4, (self.m, self.k), ({"m": 1}, {"k": 1})),
                Access("b", 4, (self.k, self.n), ({"k": 1}, {"n": 1}), constant=True),
                Access("c", 4, (self.m, self.n), ({"m": 1}, {"n": 1}), write=True),
            ),
            tiles=tiles,
            parallelism=self._grid(c).astype(np.int64),
            operations=2.0 * padded * self.k,
        )

    def _price(self, c: Columns, split_k: bool) -> Array:
        rows, vectors = _number(c, "rows"), _number(c, "vectors")
        unroll, pack, depth = _number(c, "unroll"), _number(c, "pack"), _number(c, "k_block")
        tiles = self._tiles(c)
        micro_tiles = np.ceil(self.m / rows) * np.ceil(self.n / (vectors * LANES))
        fma = np.maximum(rows * vectors / 2, 4.0)
        load = (rows + vectors) / 2
        code = rows * vectors * unroll
        step = np.maximum(fma, load) + 1.5 / unroll + np.where(code > 160, code / 160 - 1, 0)
        step = step * (1 + 0.35 * np.maximum(rows * vectors + vectors + 1 - 32, 0) / 4)
        a_bytes = 4 * tiles["l1"]["m"] * depth
        b_bytes = 4 * tiles["l1"]["n"] * depth
        step = step * (1 + 0.5 * np.clip((a_bytes + b_bytes) / 44e3 - 1, 0, 1.5))
        aliased = (1 - pack) * (self.k % 512 == 0) * np.clip(rows - 6, 0, 8)
        step = step * (1 + 0.08 * aliased)
        l2_bytes = 4 * (tiles["l2"]["m"] * depth + depth * tiles["core"]["n"])
        step = step * (1 + 0.4 * np.clip(l2_bytes / 0.8e6 - 1, 0, 2))
        order = c["order"]
        step = step * np.where(order == "kmn", 1.15, np.where(order == "nmk", 1.0, 1.03))
        store = micro_tiles * np.ceil(self.k / depth) * (rows * vectors * 1.5 + 8)
        packing = pack * _PACK_CYCLES * self.m * self.k / 8 * np.where(order == "nmk", 0.5, 1.0)
        cycles = micro_tiles * self.k * step + store + packing
        tasks = self._grid(c)
        cycles = cycles / tasks * np.ceil(tasks / 2) + 900 * np.ceil(tasks / 2)
        if split_k:
            cycles = cycles + self.m * self.n * _number(c, "parts") / 8
        failed = (rows >= 13) & (unroll == 8)
        return np.where(failed, np.inf, cycles / 4e9)


def _number(columns: Columns, name: str) -> Array:
    return columns[name].astype(np.float64)


LANDSCAPES = {
    "square": Landscape(1024, 1024, 1024),
    "dense": Landscape(128, 768, 768),
    "skinny": Landscape(16, 1000, 2048),
    "conv1x1": Landscape(196, 256, 1024),
    "odd": Landscape(197, 384, 1536),
    "small": Landscape(49, 512, 512),
}


@pytest.fixture
def target() -> Target:
    return TARGET


@pytest.fixture
def square() -> Landscape:
    return LANDSCAPES["square"]


@pytest.fixture
def landscapes() -> dict[str, Landscape]:
    return LANDSCAPES

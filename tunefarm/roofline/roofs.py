"""The roofs of this machine, measured: its FMA peak, and how fast caches and DRAM are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunefarm.compiler.target import Target

CORES = Path("/sys/devices/system/cpu")
_PAGE = 4096
_DRAM_BYTES = 256 << 20  # at the least; beside a larger cache twice that cache


@dataclass(frozen=True, slots=True)
class Level:
    """A cache level or DRAM: the bytes that it holds for all cores together, and bytes/s of
    reading from it on all of them at once."""

    name: str
    capacity: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Roofs:
    """``flops`` are FLOP/s of f32 FMAs on all cores; ``levels`` go from the nearest to DRAM."""

    cores: int
    flops: float
    levels: tuple[Level, ...]

    def home(self, size: float) -> int:
        """The index of the nearest level that holds so many bytes; that of DRAM if none does."""
        fitting = (i for i, level in enumerate(self.levels) if size <= level.capacity)
        return next(fitting, len(self.levels) - 1)

    def __str__(self) -> str:
        """``178 GFLOP/s of FMAs; reading from L1 540, L2 150, L3 20, DRAM 11 GB/s``."""
        rates = ", ".join(f"{v.name} {v.bandwidth / 1e9:.0f}" for v in self.levels)
        return f"{self.flops / 1e9:.0f} GFLOP/s of FMAs; reading from {rates} GB/s"


@dataclass(frozen=True, slots=True)
class Cache:
    """A data cache of ``size`` bytes that ``sharing`` cores have together."""

    level: int
    size: int
    sharing: int


def measure_roofs(target: Target) -> Roofs:
    """Measure them on as many cores as the target has, in about a second and a half."""
    from tunefarm.worker.peaks import compute_peaks, read_bandwidth

    cores, mcpu = target.num_cores, target.mcpu
    flops = compute_peaks(mcpu, cores)["flops_1" if cores == 1 else "flops_n"]
    levels = [
        Level(name, capacity, read_bandwidth(mcpu, cores, size))
        for name, capacity, size in places(caches_of(target), cores)
    ]
    return Roofs(cores, flops, tuple(levels))


def places(caches: list[Cache], cores: int) -> Iterator[tuple[str, float, int]]:
    """Name, capacity and the bytes for each core to read, of each cache level and of DRAM.

    A level is read in half of what one core has of it, and in more than what lies before it.
    """
    inner = 0.0
    for cache in sorted(caches, key=lambda c: c.level):
        capacity = float(cache.size * -(-cores // cache.sharing))
        mine = capacity / cores
        if mine > inner:
            yield f"L{cache.level}", capacity, _whole(max(min(mine / 2, 4 * inner or mine), inner))
            inner = mine
    largest = max((c.size for c in caches), default=0)
    yield "DRAM", float("inf"), _whole(max(_DRAM_BYTES, 2 * largest) / cores)


def _whole(size: float) -> int:
    return max(_PAGE, int(size) // _PAGE * _PAGE)


def caches_of(target: Target) -> list[Cache]:
    """The data caches of this process's first core as Linux tells them; else those that the target
    knows."""
    from tunefarm.worker.device import own_cores

    return list(caches_in(CORES / f"cpu{own_cores()[0]}" / "cache")) or [
        Cache(1, target.l1_bytes, 1),
        Cache(2, target.l2_bytes, 1),
        Cache(3, target.l3_bytes, 1 << 16),
    ]


def caches_in(folder: Path) -> Iterator[Cache]:
    """The data caches that a folder of Linux's sysfs tells of; none that cannot be read."""
    for index in sorted(folder.glob("index*")):
        try:
            level, size, sharing, kind = (
                (index / name).read_text().strip()
                for name in ("level", "size", "shared_cpu_list", "type")
            )
            if kind != "Instruction":
                yield Cache(int(level), _bytes_of(size), _count(sharing))
        except (OSError, ValueError):
            continue


def _bytes_of(text: str) -> int:
    """``48K`` as bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _count(text: str) -> int:
    """How many processors ``0-3,8`` names."""
    spans = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)

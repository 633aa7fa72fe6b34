"""What was wanted of a GPU, held to the reports of this folder: one bar a line, met or not.

A bar is a share that each of its cases should reach: of the fastest library's speed, of a copy's
bandwidth, of a rate. What was not measured says so, and meets nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Reports = Mapping[str, Mapping[str, Any]]
"""The reports of the scripts by their names; those there are."""
Figures = dict[str, float]
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Bar:
    """What is wanted at least of each of the cases, and what these came to."""

    name: str
    wanted: float
    figures: Figures

    @property
    def met(self) -> bool | None:
        """None where nothing was measured."""
        return min(self.figures.values()) >= self.wanted if self.figures else None

    def told(self) -> dict[str, Any]:
        return {"bar": self.name, "wanted": self.wanted, "met": self.met, "figures": self.figures}

    def line(self) -> str:
        if not self.figures:
            return f"{self.name:<58}≥ {self.wanted:<5g} not measured"
        least, most = min(self.figures.values()), max(self.figures.values())
        below = sum(figure < self.wanted for figure in self.figures.values())
        verdict = "met" if self.met else f"missed by {below} of {len(self.figures)}"
        return f"{self.name:<58}≥ {self.wanted:<5g} {least:.2f} to {most:.2f}: {verdict}"


def bars(reports: Reports) -> list[Bar]:
    """Each of those that were wanted, in the order in which they were."""
    answers = {r["case"]: 0.0 if "failed" in r else 1.0 for r in _results(reports, "check")}
    by_groups = _products(reports, HALVES, "wgmma")
    return [
        Bar("sketches that answer right", 1.0, answers),
        Bar("16-bit products by mma.sync, of cuBLAS", 0.6, _products(reports, HALVES, "mma")),
        Bar("16-bit products by wgmma, of cuBLAS", 0.9, by_groups),
        Bar("16-bit products by wgmma, level with cuBLAS", 1.0, by_groups),
        Bar("float32 products, of cuBLAS", 0.85, _products(reports, ("float32",))),
        Bar("TF32 products, of cuBLAS", 0.8, _products(reports, ("tf32",))),
        Bar("convolutions, of cuDNN", 1.0, _beside_libraries(reports, "conv")),
        Bar("memory-bound kernels, of a copy's bandwidth", 0.9, _of_copies(reports)),
        Bar("operators, of torch.compile's (max-autotune)", 1.0, _beside_compiled(reports)),
        Bar("ResNet-50 and BERT-base, of torch.compile's", 1.0, _models(reports)),
        Bar("trials a second", 10.0, _rates(reports)),
    ]  # fmt: skip


def _results(reports: Reports, name: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = reports.get(name, {}).get("results", [])
    return found


def _right(reports: Reports, name: str) -> Iterator[Mapping[str, Any]]:
    return (result for result in _results(reports, name) if "failed" not in result)


def _share(result: Mapping[str, Any]) -> float | None:
    """Our speed over that of the fastest library; None without one."""
    found = [peer["over"] for peer in result["peers"].values() if "over" in peer]
    return min(found) if found else None


def _products(reports: Reports, kinds: tuple[str, ...], by: str = "") -> Figures:
    """The share of each product of these precisions; the better of the sketches that use an
    instruction."""
    sketches = {"mma": ("gpu_mma",), "wgmma": ("gpu_wgmma", "gpu_tma"), "": ()}[by]
    found: Figures = {}
    for result in _right(reports, "kernels"):
        case, share = result["case"].partition(" by ")[0], _share(result)
        mine = case.startswith("matmul") and case.split()[-1] in kinds
        if mine and share is not None and (not sketches or result["sketch"] in sketches):
            found[case] = max(share, found.get(case, 0.0))
    return found


def _beside_libraries(reports: Reports, begins: str) -> Figures:
    found: Figures = {}
    for result in _right(reports, "kernels"):
        case, share = result["case"].partition(" by ")[0], _share(result)
        if case.startswith(begins) and share is not None:
            found[case] = max(share, found.get(case, 0.0))
    return found


def _of_copies(reports: Reports) -> Figures:
    results = _right(reports, "kernels")
    named = ((r["case"], r.get("share_of_copy")) for r in results if "matmul" not in r["case"])
    return {case: share for case, share in named if share is not None}


def _beside_compiled(reports: Reports) -> Figures:
    named = ((r["case"], _share(r)) for r in _right(reports, "compiled"))
    return {case: share for case, share in named if share is not None}


def _models(reports: Reports) -> Figures:
    results = _right(reports, "models")
    found = ((r["case"].partition(" by ")[0], r.get("over_torch")) for r in results)
    return {case: over for case, over in found if over is not None}


def _rates(reports: Reports) -> Figures:
    return {r["case"]: r["trials_per_second"] for r in _right(reports, "trials")}

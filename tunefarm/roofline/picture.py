"""The roofline as a picture: a dot a node, the machine's roofs, a panel a number of cores."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan2, cos, degrees, hypot, pi, sin, sqrt
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.roofline.nodes import (
    ARITHMETIC,
    DOT,
    NOTES,
    STRASSEN,
    WINOGRAD,
    Group,
    Node,
    Roofline,
)
from tunefarm.texts import counted, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
EXTRA = "pip install 'tunefarm[plot]'"
LABELLED = 10
_COLOURS = {
    ARITHMETIC: "#1f5fa8", "L1": "#5aa469", "L2": "#8fb339", "L3": "#e0932f", "DRAM": "#c23b3b",
}  # fmt: skip
_GREY = "#444444"
_MARKERS = {WINOGRAD: "D", STRASSEN: "^", DOT: "s"}
_SHAPES = {
    WINOGRAD: "Diamonds: Winograd's method.",
    STRASSEN: "Triangles: Strassen's method.",
    DOT: "Squares: dot products.",
}
_WIDTH, _PANEL, _BELOW, _FOOT = 11.5, 5.0, 0.5, 0.65  # inches; the foot holds the caption
_LEAST_AREA, _AREA = 18.0, 1400.0  # points²: of a dot, and what all dots share by time
_NAME = 46  # characters
_NUMBER = 5.0  # points: the room that a number takes around it
_PLACES = tuple(
    (round(radius * cos(turn * pi / 4)), round(radius * sin(turn * pi / 4)))
    for radius in (11, 18, 26, 36)
    for turn in (1, 3, 5, 7, 2, 6, 0, 4)
)  # of a number beside its dot, in points, in the order of preference


def check_matplotlib() -> None:
    """TunefarmError unless the library that draws is installed."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise TunefarmError(f"--picture needs matplotlib; {EXTRA} brings it")


def draw(title: str, results: Sequence[Roofline], path: Path) -> None:
    """Write the picture; its format is told by the file's ending. OSError if it cannot."""
    from matplotlib.figure import Figure

    height = _PANEL * len(results) + _FOOT
    figure = Figure(figsize=(_WIDTH, height))
    for number, result in enumerate(results):
        bottom = _FOOT + _PANEL * (len(results) - 1 - number) + _BELOW
        axes = figure.add_axes((0.065, bottom / height, 0.52, (_PANEL - _BELOW - 0.4) / height))
        axes.set_title(f"{title}, {counted(result.roofs.cores, 'core')}", loc="left", fontsize=11)
        _draw_panel(axes, result)
        _list_groups(figure, axes, result)
    for line, text in enumerate(wrap(_caption(results), 175)):
        y = (_FOOT - 0.12 - 0.17 * line) / height
        figure.text(0.065, y, text, fontsize=8, color=_GREY, va="top")
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Axes, result: Roofline) -> None:
    drawn = _drawn(result)
    ridge = result.roofs.flops / result.roofs.levels[-1].bandwidth
    lows = [_at(n)[0] for n in drawn] or [ridge]
    rates = [_at(n)[1] for n in drawn] or [result.roofs.flops]
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(min(lows) / 2.5, max(*lows, ridge) * 2.5),
        ylim=(min(rates) / 2.5, max(*rates, result.roofs.flops) * 2.2),
        xlabel="FLOP/byte (inputs, weights and outputs moved once)",
        ylabel="GFLOP/s",
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e9:g}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_roofs(axes, result)
    for node in drawn:
        axes.scatter(
            *_at(node),
            s=pi * _radius(node, result) ** 2,
            color=_COLOURS.get(node.bound, _GREY),
            marker=_MARKERS.get(node.work.sketch, "o"),
            alpha=0.75,
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
        )
    _number_groups(axes, result)


def _draw_roofs(axes: Axes, result: Roofline) -> None:
    low, high = axes.get_xlim()
    bottom, _ = axes.get_ylim()
    peak = result.roofs.flops
    name = f"FMA peak {peak / 1e9:.0f} GFLOP/s"
    axes.plot([low, high], [peak, peak], color=_COLOURS[ARITHMETIC], linewidth=1.4)
    axes.annotate(
        name, (low, peak), (4, 4), textcoords="offset points", fontsize=8,
        color=_COLOURS[ARITHMETIC],
    )  # fmt: skip
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    slope = degrees(atan2(y1 - y0, x1 - x0))
    for level in result.roofs.levels:
        start, ridge = max(low, bottom / level.bandwidth), peak / level.bandwidth
        if ridge <= start:
            continue
        colour = _COLOURS.get(level.name, _GREY)
        axes.plot(
            [start, ridge], [start * level.bandwidth, peak], color=colour, linewidth=1.1, zorder=1
        )
        axes.annotate(
            f"{level.name} {level.bandwidth / 1e9:.0f} GB/s", (start, start * level.bandwidth),
            (10, 12), textcoords="offset points", rotation=slope, rotation_mode="anchor",
            fontsize=8, color=colour,
        )  # fmt: skip


def _number_groups(axes: Axes, result: Roofline) -> None:
    """Number the slowest groups beside one of their nodes, where there is room."""
    taken = [(*_points(axes, n), _radius(n, result)) for n in _drawn(result)]
    for number, group in enumerate(_listed(result), 1):
        middle = sorted(group.nodes, key=lambda n: n.seconds)[len(group.nodes) // 2]
        if not _is_drawn(middle):
            continue
        x, y = _points(axes, middle)
        dx, dy = _free_place(x, y, taken)
        taken.append((x + dx, y + dy, _NUMBER))
        axes.annotate(
            str(number), _at(middle), (dx, dy), textcoords="offset points", fontsize=8,
            fontweight="bold", ha="center", va="center", zorder=4,
            arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.5, "shrinkB": 0},
        )  # fmt: skip


def _points(axes: Axes, node: Node) -> tuple[float, float]:
    """Where a node's dot lies, in points from the corner of the figure."""
    x, y = axes.transData.transform(_at(node)) * 72 / axes.figure.dpi
    return float(x), float(y)


def _free_place(x: float, y: float, taken: Sequence[tuple[float, float, float]]) -> tuple[int, int]:
    """The first place for a number that touches nothing; else the one with the most room."""

    def room(place: tuple[int, int]) -> float:
        return min(hypot(x + place[0] - a, y + place[1] - b) - r for a, b, r in taken)

    return next((p for p in _PLACES if room(p) > _NUMBER), max(_PLACES, key=room))


def _list_groups(figure: Figure, axes: Axes, result: Roofline) -> None:
    """The numbered groups beside a panel, with their time and the share of the roof reached."""
    groups, rest = _listed(result), result.groups[LABELLED:]
    rows = [
        (str(number), _name(group), *_reached(group), _COLOURS.get(group.nodes[0].bound, _GREY))
        for number, group in enumerate(groups, 1)
    ]
    if rest:
        others = Group(tuple(node for group in rest for node in group.nodes))
        name = counted(len(others.nodes), "more node")
        rows.append(("", name, *_reached(others), _GREY))
    rows.insert(0, ("", "slowest nodes", "time", "of roof", _GREY))
    rows.append(("", "all nodes", *_reached(Group(result.nodes)), _GREY))
    box, height = axes.get_position(), figure.get_size_inches()[1]
    sides = ((0.03, "right"), (0.036, "left"), (0.347, "right"), (0.395, "right"))
    for line, (*texts, colour) in enumerate(rows):
        y = box.y1 - (0.06 + 0.24 * line) / height
        weight = "bold" if line in (0, len(rows) - 1) else "normal"
        for (x, side), text in zip(sides, texts, strict=True):
            figure.text(box.x1 + x, y, text, fontsize=7.5, color=colour, ha=side, weight=weight)


def _name(group: Group) -> str:
    count = f" ×{len(group.nodes)}" if len(group.nodes) > 1 else ""
    length, text = _NAME - len(count), group.work.name
    return f"{text if len(text) <= length else f'{text[: length - 1]}…'}{count}"


def _reached(group: Group) -> tuple[str, str]:
    """The time, and the share of the roof."""
    return duration(group.seconds), f"{100 * group.roof_s / group.seconds:.0f}%"


def _listed(result: Roofline) -> list[Group]:
    return result.groups[:LABELLED]


def _is_drawn(node: Node) -> bool:
    return bool(node.work.flops and node.work.bytes and node.seconds)


def _drawn(result: Roofline) -> list[Node]:
    return [node for node in result.nodes if _is_drawn(node)]


def _at(node: Node) -> tuple[float, float]:
    """FLOP/byte and FLOP/s."""
    return node.work.flops / node.work.bytes, node.work.flops / node.seconds


def _radius(node: Node, result: Roofline) -> float:
    """Of a dot, in points."""
    return sqrt((_LEAST_AREA + _AREA * node.seconds / result.seconds) / pi)


def _caption(results: Sequence[Roofline]) -> str:
    sentences = ["A dot is a node: its area grows with its time, its colour is that of its roof."]
    sketches = frozenset[str]().union(*(result.sketches for result in results))
    sentences += [f"{_SHAPES[s]} {note}" for s, note in NOTES.items() if s in sketches]
    plain = [n for n in results[0].nodes if not n.work.flops]
    if plain:
        seconds = duration(sum(n.seconds for n in plain))
        sentences.append(f"{counted(len(plain), 'node')} without FLOPs ({seconds}) not drawn.")
    return " ".join(sentences)

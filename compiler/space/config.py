"""Configuration spaces: sketches with named knobs, and populations as integer matrices.

A population is an int32 matrix ``[candidates, 1 + knobs]``: column 0 is the sketch's index, the
others hold the index of each knob's choice. Knobs are shared by name between sketches; a knob
that a sketch does not have stands at 0 in its rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import ScheduleError

Value = int | str
Config = Mapping[str, Value]
Population = NDArray[np.int32]
Columns = Mapping[str, NDArray[np.generic]]
"""Knob name → the chosen value of each candidate (int64, or object array of str)."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A named choice. ``ordered`` choices have a meaningful neighbour (tile sizes)."""

    name: str
    choices: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        """Whether choices have neighbours: numbers have, words have not."""
        return isinstance(self.choices[0], int)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A named predicate over columns of knob values; True where a candidate is allowed."""

    name: str
    holds: Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Access:
    """How one tensor is read or written: each of its dimensions is an affine function of the axes.

    ``dims[d]`` maps an axis name to its stride; the dimension's tile footprint is
    ``1 + Σ stride · (tile − 1)``, at most ``shape[d]``.
    """

    tensor: str
    element_bytes: int
    shape: tuple[int, ...]
    dims: tuple[Mapping[str, int], ...]
    write: bool = False
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Nest:
    """What a candidate's loop nest looks like, for all candidates of one sketch at once.

    ``extents`` gives each axis its full extent, ``reduce`` names the reduction axes, and
    ``tiles[level][axis]`` is the int64 array ``[candidates]`` of that axis's tile extent at a
    level. Levels run from the innermost (``"vector"``, ``"register"``, ``"l1"``, ``"l2"``,
    ``"core"``) outwards; a level that a sketch does not use repeats the one inside it.
    ``operations`` is the executed floating-point operations of each candidate, padding waste
    included. ``parallelism`` is the number of parallel tasks (1: serial). ``extra`` holds further
    named numeric columns (unroll, staging flags, …).
    """

    extents: Mapping[str, int]
    reduce: frozenset[str]
    accesses: tuple[Access, ...]
    tiles: Mapping[str, Mapping[str, NDArray[np.int64]]]
    parallelism: NDArray[np.int64]
    operations: NDArray[np.float64]
    extra: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


LEVELS = ("vector", "register", "l1", "l2", "core")


@dataclass(frozen=True, slots=True)
class SketchSpace:
    """One sketch's knobs for one task. ``default`` is a good config without any record.

    A sketch that is not ``preferred`` stands behind the others: its default is not the task's.
    ``plugin`` names package and release (``toy-ops==0.1``) of one that a plug-in brought. An
    instruction sums so many ``terms`` in a lane, which the nest's operations count as one.
    """

    sketch: str
    version: int
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...]
    default: Config
    nest: Callable[[Columns], Nest]
    preferred: bool = True
    plugin: str = ""
    terms: int = 1

    def __str__(self) -> str:
        """Its knobs and constraints, a line each."""
        wide = max((len(knob.name) for knob in self.knobs), default=0)
        lines = [
            f"  {knob.name:<{wide}} {_choices(knob, self.default.get(knob.name))}"
            for knob in self.knobs
        ]
        names = ", ".join(constraint.name for constraint in self.constraints)
        held = [f"  where {names}"] if names else []
        return "\n".join([f"{self.sketch}, version {self.version}", *lines, *held])


def _choices(knob: Knob, default: Value | None) -> str:
    """``1 2 *4 8``: what a knob may be, the default marked."""
    return " ".join(f"*{choice}" if choice == default else str(choice) for choice in knob.choices)


@dataclass(frozen=True)
class ConfigSpace:
    """All sketches of a task; built deterministically from (workload, target)."""

    sketches: tuple[SketchSpace, ...]

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """One column each: the union over sketches, keyed by name and choices."""
        seen: dict[Knob, None] = {}
        for sketch in self.sketches:
            seen.update(dict.fromkeys(sketch.knobs))
        return tuple(seen)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of sketch versions and names of knobs; a record with another one is stale.

        The choices of a knob are not in it: more of them leave known configs what they are. The
        releases of plug-ins are.
        """
        return _fingerprint(self.sketches)

    @cached_property
    def own_fingerprint(self) -> str:
        """What the fingerprint is without plug-ins: records with it are of sketches that they leave
        as they are."""
        return _fingerprint([s for s in self.sketches if not s.plugin])

    @cached_property
    def _column_of(self) -> tuple[tuple[int, ...], ...]:
        position = {knob: i + 1 for i, knob in enumerate(self.knobs)}
        return tuple(tuple(position[k] for k in s.knobs) for s in self.sketches)

    @property
    def size(self) -> int:
        """Configurations before constraints."""
        total = 0
        for sketch in self.sketches:
            count = 1
            for knob in sketch.knobs:
                count *= len(knob.choices)
            total += count
        return total

    @property
    def default(self) -> Config:
        """The default of the first sketch; ScheduleError if no sketch computes the task."""
        if not self.sketches:
            raise ScheduleError("no sketch computes this workload for this target")
        return self.sketches[0].default

    def __repr__(self) -> str:
        names = ", ".join(sketch.sketch for sketch in self.sketches)
        return f"ConfigSpace({names}: {self.size:,} configs)"

    def __str__(self) -> str:
        """Each sketch with its knobs, a ``*`` at the default's choice, and its constraints."""
        return "\n".join([repr(self), *map(str, self.sketches)])

    def _repr_html_(self) -> str:
        from tunefarm.notebook import text

        return text(str(self))

    def sketch(self, name: str) -> SketchSpace:
        """The sketch of this name; ScheduleError if the space has none."""
        for candidate in self.sketches:
            if candidate.sketch == name:
                return candidate
        known = ", ".join(s.sketch for s in self.sketches)
        raise ScheduleError(f"no sketch {name!r} in this space; sketches: {known}")

    def sample(self, rng: np.random.Generator, count: int) -> Population:
        """``count`` random rows, sketches uniformly, constraints not applied."""
        rows = np.zeros((count, 1 + len(self.knobs)), np.int32)
        rows[:, 0] = rng.integers(len(self.sketches), size=count)
        for index, sketch in enumerate(self.sketches):
            mine = np.flatnonzero(rows[:, 0] == index)
            for column, knob in zip(self._column_of[index], sketch.knobs, strict=True):
                rows[mine, column] = rng.integers(len(knob.choices), size=len(mine))
        return rows

    def columns(self, rows: Population, sketch: int) -> Columns:
        """Knob values of rows that all belong to one sketch."""
        knobs = self.sketches[sketch].knobs
        return {
            knob.name: _choice_array(knob)[rows[:, column]]
            for column, knob in zip(self._column_of[sketch], knobs, strict=True)
        }

    def valid(self, rows: Population) -> NDArray[np.bool_]:
        """True where every constraint of the row's sketch holds."""
        mask = np.ones(len(rows), bool)
        for index, sketch in enumerate(self.sketches):
            mine = np.flatnonzero(rows[:, 0] == index)
            if len(mine) and sketch.constraints:
                columns = self.columns(rows[mine], index)
                for constraint in sketch.constraints:
                    mask[mine] &= constraint.holds(columns)
        return mask

    def decode(self, row: NDArray[np.int32]) -> Config:
        """The config of one row."""
        index = int(row[0])
        sketch = self.sketches[index]
        config: dict[str, Value] = {"sketch": sketch.sketch}
        for column, knob in zip(self._column_of[index], sketch.knobs, strict=True):
            config[knob.name] = knob.choices[int(row[column])]
        return config

    def encode(self, config: Config) -> NDArray[np.int32]:
        """The row of a config; ScheduleError names the knob whose value is not a choice."""
        names = [s.sketch for s in self.sketches]
        name = config.get("sketch")
        if name not in names:
            raise ScheduleError(f"no sketch {name!r} in this space; sketches: {', '.join(names)}")
        index = names.index(str(name))
        row = np.zeros(1 + len(self.knobs), np.int32)
        row[0] = index
        for column, knob in zip(self._column_of[index], self.sketches[index].knobs, strict=True):
            value = config.get(knob.name)
            if value not in knob.choices:
                raise ScheduleError(
                    f"knob {knob.name} of sketch {name} is {value!r}; "
                    f"choices: {', '.join(map(str, knob.choices))}"
                )
            row[column] = knob.choices.index(value)
        extra = config.keys() - {"sketch"} - {k.name for k in self.sketches[index].knobs}
        if extra:
            raise ScheduleError(f"sketch {name} has no knob {sorted(extra)[0]}")
        return row

    def neighbours(self, row: NDArray[np.int32]) -> Population:
        """Rows that differ in one knob: one step for ordered knobs, any choice for others."""
        index = int(row[0])
        found: list[NDArray[np.int32]] = []
        for column, knob in zip(self._column_of[index], self.sketches[index].knobs, strict=True):
            current = int(row[column])
            steps: Sequence[int] = range(len(knob.choices))
            if knob.ordered:
                steps = [c for c in (current - 1, current + 1) if 0 <= c < len(knob.choices)]
            for choice in steps:
                if choice != current:
                    other = row.copy()
                    other[column] = choice
                    found.append(other)
        return np.array(found, np.int32).reshape(-1, len(row))


def _fingerprint(sketches: Sequence[SketchSpace]) -> str:
    content = sorted(
        [s.sketch, s.version, [k.name for k in s.knobs], *([s.plugin] if s.plugin else [])]
        for s in sketches
    )
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _choice_array(knob: Knob) -> NDArray[np.generic]:
    dtype = np.int64 if knob.ordered else object
    return np.array(knob.choices, dtype)

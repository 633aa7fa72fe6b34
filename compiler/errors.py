"""The errors that reach people: one sentence each, with what, where, got and allowed."""

from __future__ import annotations


class TunefarmError(Exception):
    """A user's mistake or a fact of the environment, told in one sentence."""


class UnusedPrecisionWarning(UserWarning):
    """A build whose precision changes none of its model's tasks; commands say it themselves."""


class ModelError(TunefarmError):
    """A model that cannot be imported."""


class OpenShapeError(ModelError):
    """A model whose input ``name`` needs a shape; ``example`` is one that fits."""

    def __init__(self, problem: str, name: str, example: tuple[int, ...]) -> None:
        self.problem, self.name, self.example = problem, name, example
        super().__init__(f"{problem}; give it one with shapes={{{name!r}: {example}}}")


class ShapeError(TunefarmError):
    """Shapes or types that do not fit an operator."""


class TargetError(TunefarmError):
    """A target string that names nothing we can build for."""


class ScheduleError(TunefarmError):
    """A schedule step that cannot be applied; the search counts it and goes on."""


class BuildError(TunefarmError):
    """A program that cannot be turned into code."""


class WorkloadError(TunefarmError):
    """A text that describes no workload."""


class BoundsError(TunefarmError):
    """An access outside of its buffer, found by a program built with bounds checks."""


class PluginError(TunefarmError):
    """A plug-in that cannot be loaded, or that failed in what it was called for."""


class PluginMismatch(PluginError):
    """A plug-in that is wanted and is not here, or is of another version."""

"""Passes over the graph, one a file; ``optimize`` runs them in order."""

from tunefarm.compiler.transform.context import Instrument, Pass, PassContext
from tunefarm.compiler.transform.pipeline import STEPS, optimize

__all__ = ["STEPS", "Instrument", "Pass", "PassContext", "optimize"]

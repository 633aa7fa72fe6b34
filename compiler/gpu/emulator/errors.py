"""What the emulator refuses: texts when they are loaded, launches, and what kernels do."""

from __future__ import annotations

from tunefarm.compiler.errors import TunefarmError


class EmulatorError(TunefarmError):
    """PTX that the emulator does not know, or a launch that a GPU would refuse."""


class KernelFault(EmulatorError):
    """What a running kernel may not do: where in the text, and in which block and thread."""


class Fault(Exception):
    """A fault of one thread, which stands at ``position`` in its group; its place in the text is
    added by who runs the instruction."""

    def __init__(self, position: int, problem: str) -> None:
        self.position, self.problem = position, problem
        super().__init__(problem)

"""Text of one LLVM function: frames of code, value numbering, loops and branches.

A frame is the code of one loop body or branch while it is being written. A pure instruction goes
to the outermost frame in which its operands exist (so address arithmetic leaves the inner loops
without an optimiser), and equal instructions are emitted once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Frame:
    """Lines of one region, the label of its current block, and the values it has."""

    label: str
    lines: list[str] = field(default_factory=list)
    values: dict[Hashable, str] = field(default_factory=dict)
    memory: dict[Hashable, dict[Hashable, str]] = field(default_factory=dict)


class FunctionBuilder:
    """Writes one function; names of values are unique within it."""

    def __init__(self) -> None:
        self.entry: list[str] = []
        self.frames: list[Frame] = [Frame("entry")]
        self.depth_of: dict[str, int] = {}
        self._count = 0

    @property
    def depth(self) -> int:
        return len(self.frames) - 1

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"%{prefix}{self._count}"

    def depth_needed(self, operands: Iterable[str]) -> int:
        return max((self.depth_of.get(o, 0) for o in operands), default=0)

    def pure(self, text: str, operands: Sequence[str] = ()) -> str:
        """An instruction without side effects, at the outermost place where it can stand."""
        for frame in reversed(self.frames):
            if text in frame.values:
                return frame.values[text]
        depth = self.depth_needed(operands)
        name = self.fresh()
        self.frames[depth].lines.append(f"  {name} = {text}")
        self.frames[depth].values[text] = name
        self.depth_of[name] = depth
        return name

    def here(self, text: str) -> str:
        """An instruction at the current place, emitted once for equal operands in a frame."""
        for frame in reversed(self.frames):
            if text in frame.values:
                return frame.values[text]
        return self.now(text, text)

    def now(self, text: str, key: Hashable | None = None) -> str:
        """An instruction at the current place."""
        name = self.fresh()
        frame = self.frames[-1]
        frame.lines.append(f"  {name} = {text}")
        self.depth_of[name] = self.depth
        if key is not None:
            frame.values[key] = name
        return name

    def load(self, text: str, buffer: Hashable) -> str:
        """A load; equal loads of a buffer are made once until the buffer is stored to."""
        for frame in reversed(self.frames):
            found = frame.memory.get(buffer, {}).get(text)
            if found is not None:
                return found
        name = self.now(text)
        self.frames[-1].memory.setdefault(buffer, {})[text] = name
        return name

    def forget(self, buffer: Hashable) -> None:
        """A buffer is about to change: its loads are made again."""
        for frame in self.frames:
            frame.memory.pop(buffer, None)

    def line(self, text: str) -> None:
        self.frames[-1].lines.append(f"  {text}")

    def alloca(self, text: str) -> str:
        """Stack memory, reserved at the function's entry."""
        name = self.fresh("stack")
        self.entry.append(f"  {name} = alloca {text}")
        self.depth_of[name] = 0
        return name

    def open_frame(self, label: str) -> Frame:
        frame = Frame(label)
        self.frames.append(frame)
        return frame

    def close_frame(self) -> Frame:
        return self.frames.pop()

    def new_label(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def define(self, name: str) -> None:
        """``name`` belongs to the current frame (a phi)."""
        self.depth_of[name] = self.depth

    def body(self) -> list[str]:
        """All lines of the finished function."""
        assert self.depth == 0
        return ["entry:", *self.entry, *self.frames[0].lines]

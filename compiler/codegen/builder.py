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
    """Lines of one region, and the label of its current block. When the frame closes, what was
    known by its ``keys`` is forgotten, and so are its ``loads`` (of a buffer, by a key)."""

    label: str
    lines: list[str] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    loads: list[tuple[Hashable, Hashable]] = field(default_factory=list)


class FunctionBuilder:
    """Writes one function; names of values are unique within it."""

    def __init__(self) -> None:
        self.entry: list[str] = []
        self.frames: list[Frame] = [Frame("entry")]
        self.depth_of: dict[str, int] = {}
        self.known: dict[Hashable, str] = {}  # what stands in an open frame: key → name
        self._loaded: dict[Hashable, dict[Hashable, str]] = {}  # buffer → key → name
        self._count = 0

    @property
    def depth(self) -> int:
        return len(self.frames) - 1

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"%{prefix}{self._count}"

    def pure(self, text: str, operands: Sequence[str] = ()) -> str:
        """An instruction without side effects, at the outermost place where it can stand."""
        name = self.known.get(text)
        if name is None:
            name = self.fresh()
            self._place(name, text, operands).lines.append(f"  {name} = {text}")
        return name

    def hoist(
        self, lines: Iterable[str], name: str, key: Hashable, operands: Sequence[str]
    ) -> None:
        """Instructions that make ``name`` of the operands, at the outermost place for them."""
        self._place(name, key, operands).lines.extend([f"  {line}" for line in lines])

    def _place(self, name: str, key: Hashable, operands: Sequence[str]) -> Frame:
        """The outermost frame that has all operands; ``name`` is known there from now on."""
        depth, depth_of = 0, self.depth_of
        for operand in operands:
            needed = depth_of.get(operand, 0)
            if needed > depth:
                depth = needed
        frame = self.frames[depth]
        depth_of[name] = depth
        self.known[key] = name
        frame.keys.append(key)
        return frame

    def here(self, text: str) -> str:
        """An instruction at the current place, emitted once for equal operands in a frame."""
        name = self.known.get(text)
        if name is None:
            name = self.now(text)
            self.known[text] = name
            self.frames[-1].keys.append(text)
        return name

    def now(self, text: str) -> str:
        """An instruction at the current place."""
        name = self.fresh()
        self.frames[-1].lines.append(f"  {name} = {text}")
        self.depth_of[name] = len(self.frames) - 1
        return name

    def remember(self, key: Hashable, name: str) -> None:
        """Let ``known`` find a value by a shorter way than its text, as long as it exists."""
        self.known[key] = name
        self.frames[self.depth_of.get(name, 0)].keys.append(key)

    def loaded(self, buffer: Hashable, key: Hashable) -> str | None:
        """What an earlier load of a buffer gave, if the buffer was not stored to since."""
        loads = self._loaded.get(buffer)
        return loads.get(key) if loads is not None else None

    def load(self, text: str, buffer: Hashable) -> str:
        """A load; equal loads of a buffer are made once until the buffer is stored to."""
        name = self.loaded(buffer, text)
        if name is None:
            name = self.now(text)
            self.remember_load(buffer, text, name)
        return name

    def remember_load(self, buffer: Hashable, key: Hashable, name: str) -> None:
        """Let ``loaded`` find a load of this or an outer frame by a key."""
        self._loaded.setdefault(buffer, {})[key] = name
        self.frames[self.depth_of.get(name, 0)].loads.append((buffer, key))

    def forget(self, buffer: Hashable) -> None:
        """A buffer is about to change: its loads are made again."""
        self._loaded.pop(buffer, None)

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
        frame = self.frames.pop()
        for key in frame.keys:
            self.known.pop(key, None)
        for buffer, key in frame.loads:
            self._loaded.get(buffer, {}).pop(key, None)
        return frame

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

"""Loaded PTX, and launches of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunefarm.compiler.gpu.archs import GPU_ARCHS, MAX_GRID, MAX_THREADS, STATIC_SHARED_BYTES
from tunefarm.compiler.gpu.emulator.accesses import MOST_BYTES, bytes_of
from tunefarm.compiler.gpu.emulator.blocks import Block, blocks_of
from tunefarm.compiler.gpu.emulator.errors import EmulatorError
from tunefarm.compiler.gpu.emulator.globals import GlobalMemory
from tunefarm.compiler.gpu.emulator.machine import Machine
from tunefarm.compiler.gpu.emulator.memory import DeviceMemory
from tunefarm.compiler.gpu.emulator.operands import Place, Scope
from tunefarm.compiler.gpu.emulator.parse import Array, Entry, parse_ptx
from tunefarm.compiler.gpu.emulator.races import LaunchRaces
from tunefarm.compiler.gpu.emulator.traffic import Traffic
from tunefarm.compiler.gpu.emulator.wave import Wave, unwritten
from tunefarm.compiler.gpu.tensor_maps import MAP_BYTES

_THREADS_AT_ONCE = 16384  # arrays of so many stay in the caches
_BYTES_AT_ONCE = 256 << 20  # of registers, shared and local memory

Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """One kernel, decoded. ``shared_bytes`` of a block are without what a launch asks for;
    ``local_bytes`` are a thread's own arrays. ``registers`` are those that the text declares.
    ``granules`` are the fewest bytes that an instruction reads or writes of shared and of global
    memory.
    """

    entry: Entry
    code: tuple[Block, ...]
    shared_bytes: int
    local_bytes: int
    granules: Mapping[str, int]

    @property
    def registers(self) -> int:
        return len(self.entry.registers)

    @property
    def has_mbarriers(self) -> bool:
        """Whether its threads wait for some of their block or for boxes, not for all alone."""
        return any(
            i.opcode == "mbarrier" or (i.opcode == "bar" and len(i.operands) > 1)
            or i.modifiers[:3] == ("async", "bulk", "tensor")
            for i in self.entry.instructions
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EmulatedModule:
    """The kernels of a PTX text by name, for the architecture that it names."""

    arch: str
    kernels: Mapping[str, EmulatedKernel]

    def launch(
        self,
        memory: DeviceMemory,
        name: str,
        grid: Extents,
        block: Extents,
        arguments: Sequence[int],
        dynamic_bytes: int = 0,
        *,
        traffic: Traffic | None = None,
        only: Sequence[int] | None = None,
    ) -> None:
        """Run a kernel to its end, or ``only`` the blocks of these numbers (and the others of their
        clusters). Arguments are
        addresses, and other numbers' bits; an array of bytes is one little-endian number.
        ``traffic`` counts what its accesses cost.

        Raises EmulatorError for a launch that a GPU would refuse, KernelFault for what the kernel
        may not do; what it wrote before that stays.
        """
        kernel = self.kernels.get(name)
        if kernel is None:
            there = ", ".join(self.kernels)
            raise EmulatorError(f"there is no kernel {name!r} in the module; there are {there}")
        self._check(kernel, grid, block, arguments, dynamic_bytes)
        shared_bytes = kernel.shared_bytes + dynamic_bytes
        parameters = {
            p.name: value & (1 << 8 * p.size) - 1
            for p, value in zip(kernel.entry.parameters, arguments, strict=True)
        }
        arrays = {
            place_of(number): parameters[p.name].to_bytes(p.size, "little")
            for number, p in enumerate(kernel.entry.parameters)
            if p.is_array
        }
        total = prod(grid)
        races = LaunchRaces(prod(block), kernel.granules["global"])
        cluster = kernel.entry.cluster
        at_once = _blocks_at_once(kernel, prod(block), shared_bytes)
        at_once = max(at_once // cluster, 1) * cluster
        for first, count in _waves(total, at_once, only, cluster):
            wave = Wave(
                name, GlobalMemory(memory, races, first * prod(block)), parameters, grid, block,
                first, count,
                shared_bytes, kernel.granules["shared"], kernel.local_bytes,
                unwritten(kernel.entry.registers), arrays, kernel.has_mbarriers, cluster, traffic,
            )  # fmt: skip
            Machine(wave, kernel.code).run()

    def _check(
        self,
        kernel: EmulatedKernel,
        grid: Extents,
        block: Extents,
        arguments: Sequence[int],
        dynamic_bytes: int,
    ) -> None:
        name, threads = kernel.entry.name, prod(block)
        limit = min(MAX_THREADS, kernel.entry.max_threads or MAX_THREADS)
        if not 1 <= threads <= limit:
            raise EmulatorError(
                f"kernel {name} runs blocks of up to {limit} threads, not {threads}"
            )
        for extent, most, axis in zip(grid, MAX_GRID, "xyz", strict=True):
            if not 1 <= extent <= most:
                raise EmulatorError(f"a grid has 1 to {most} blocks along {axis}, not {extent}")
        if grid[0] % kernel.entry.cluster:
            raise EmulatorError(
                f"kernel {name} has clusters of {kernel.entry.cluster} blocks along x, of which "
                f"{grid[0]} blocks are no multiple"
            )
        if len(arguments) != len(kernel.entry.parameters):
            raise EmulatorError(
                f"kernel {name} takes {len(kernel.entry.parameters)} arguments, not "
                f"{len(arguments)}"
            )
        arch = GPU_ARCHS.get(self.arch)
        shared = kernel.shared_bytes + dynamic_bytes
        if arch is not None and shared > arch.shared_bytes:
            raise EmulatorError(
                f"a block of {name} shares {shared} bytes; {self.arch} has {arch.shared_bytes}"
            )


def load_ptx(text: str | bytes) -> EmulatedModule:
    """Decode a module. EmulatorError names the line of what the emulator does not know."""
    module = parse_ptx(text.decode() if isinstance(text, bytes) else text)
    kernels = {entry.name: _kernel(entry, module.arrays) for entry in module.entries}
    return EmulatedModule(module.arch, kernels)


def _kernel(entry: Entry, arrays: Sequence[Array]) -> EmulatedKernel:
    used = [*arrays, *entry.arrays]
    for array in used:
        if array.space not in ("shared", "local"):
            raise EmulatorError(f"{array.name} is in {array.space} memory, which is not emulated")
    places: dict[str, Place] = {}
    ends = {"shared": 0, "local": 0}
    for array in sorted(used, key=lambda a: not a.size):  # what a launch asks for comes last
        begin = -(-ends[array.space] // array.align) * array.align
        places[array.name] = Place(array.space, begin)
        ends[array.space] = begin + array.size
    if ends["shared"] > STATIC_SHARED_BYTES:
        raise EmulatorError(
            f"kernel {entry.name} declares {ends['shared']} bytes of shared memory; more than "
            f"{STATIC_SHARED_BYTES} have to be asked for by launches"
        )
    for number, parameter in enumerate(entry.parameters):
        if parameter.is_array:
            places[parameter.name] = Place("param", place_of(number))
    registers = {r.name: number for number, r in enumerate(entry.registers)}
    scope = Scope(registers, places, {p.name: p.size for p in entry.parameters})
    blocks = blocks_of(entry, scope)
    granules = {
        space: min((bytes_of(i, space) for i in entry.instructions), default=MOST_BYTES)
        for space in ("shared", "global")
    }
    return EmulatedKernel(entry, blocks, ends["shared"], ends["local"], granules)


def _waves(
    total: int, at_once: int, only: Sequence[int] | None, cluster: int
) -> Iterator[tuple[int, int]]:
    """The first block and the number of blocks of each wave, whole clusters."""
    if only is not None:
        firsts = dict.fromkeys(block // cluster * cluster for block in only)
        yield from ((first, cluster) for first in firsts)
    else:
        yield from ((first, min(at_once, total - first)) for first in range(0, total, at_once))


def place_of(number: int) -> int:
    """Where a parameter begins in the memory of parameters."""
    return number * MAP_BYTES


def _blocks_at_once(kernel: EmulatedKernel, threads: int, shared_bytes: int) -> int:
    """How many blocks run at the same time, by the arrays that they need."""
    registers = sum(max(r.bits, 8) // 8 for r in kernel.entry.registers)
    marks = 8 // kernel.granules["shared"] + 2  # bytes for each byte that is shared
    each = threads * (registers + kernel.local_bytes) + marks * shared_bytes
    return max(1, min(_THREADS_AT_ONCE // threads, _BYTES_AT_ONCE // max(each, 1)))

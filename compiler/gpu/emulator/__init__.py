"""An emulator of PTX: runs the text that the compiler makes for GPUs, without one.

    module = load_ptx(kernel.object)
    memory = DeviceMemory()
    x = memory.allocate(4096)
    memory.write(x, array)
    module.launch(memory, "kernel", grid, block, [x, y, workspace], dynamic_bytes)
    memory.read(y, 4096)

It is there for what the text means, not for how long it takes: every access is held against what is
allocated, written and arrived, every exchange of threads against who comes to it.
"""

from tunefarm.compiler.gpu.emulator.errors import EmulatorError, KernelFault
from tunefarm.compiler.gpu.emulator.memory import DeviceMemory
from tunefarm.compiler.gpu.emulator.module import EmulatedKernel, EmulatedModule, load_ptx
from tunefarm.compiler.gpu.emulator.traffic import Access, Traffic

__all__ = [
    "Access",
    "DeviceMemory",
    "EmulatedKernel",
    "EmulatedModule",
    "EmulatorError",
    "KernelFault",
    "Traffic",
    "load_ptx",
]

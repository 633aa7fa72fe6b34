"""Models as objects and static archives, for any linker: ELF, and WebAssembly's own format.

ELF objects become one, with the weights at its end. WebAssembly's code is linked as LLVM modules,
and its weights are an object of their own, so that they never pass through LLVM text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import WASM32
from tunefarm.compiler.runtime.archive import Member, archive_head, member_header, padding
from tunefarm.compiler.runtime.elf_relocatable import merge_objects
from tunefarm.compiler.runtime.executor import RUN, executor_text
from tunefarm.compiler.runtime.native import native_object, native_text
from tunefarm.compiler.runtime.wasm_object import data_object

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.module import Module

WEIGHTS = "tunefarm_weights"
METADATA = "tunefarm_metadata"
LIBC = {name: f"tunefarm_{name}" for name in ("memcpy", "memmove", "memset")}
# C names of the header: <model>_<what> → the runtime's own symbol.
_C_NAMES = {
    "run": RUN,
    "weights": f"{WEIGHTS}_address",
    "metadata": f"{METADATA}_address",
    "worker_main": "tunefarm_worker_main",
    "pool_shutdown": "tunefarm_pool_shutdown",
    "pool_spin": "tunefarm_pool_spin",
    "ticks": "tunefarm_ticks",
}
# C programs ask functions for the data: a linker would copy a named array into the program.
_ADDRESSES = f"""
@{WEIGHTS} = external hidden constant i8
@{METADATA} = external hidden constant i8
define ptr @{WEIGHTS}_address() {{
  ret ptr @{WEIGHTS}
}}
define ptr @{METADATA}_address() {{
  ret ptr @{METADATA}
}}
"""


def c_names(prefix: str) -> dict[str, str]:
    """The C functions of a model: offered name → symbol."""
    return {f"{prefix}_{what}": symbol for what, symbol in _C_NAMES.items()}


def objects_of(module: Module) -> list[bytes]:
    """All object code of a module: runtime, addresses of its data, kernels, executor."""
    from tunefarm.compiler.codegen.llvm_compile import compile_llvm

    assert module.code is not None
    addresses = compile_llvm(_ADDRESSES, module.target)
    kernels = (kernel.object for kernel in module.code.kernels)
    objects = [native_object(module.target), addresses, *kernels, module.code.executor]
    return list(dict.fromkeys(objects))


@dataclass(frozen=True, slots=True)
class _Object:
    """An object file, which the weights stand in the middle of or not in."""

    name: str
    head: bytes
    tail: bytes
    symbols: tuple[str, ...]
    weight_bytes: int = 0

    @property
    def member(self) -> Member:
        size = len(self.head) + self.weight_bytes + len(self.tail)
        return Member(self.name, size, self.symbols)

    def parts(self, weights: memoryview) -> Iterator[bytes | memoryview]:
        yield self.head
        if self.weight_bytes:
            yield weights
        yield self.tail


def static_parts(
    module: Module, prefix: str, metadata: bytes, path: Path
) -> Iterator[bytes | memoryview]:
    """The bytes of an object (``.o``) or archive (``.a``), piece by piece.

    Raises BuildError where one object cannot hold the model.
    """
    weights = module.weights[: module.plan.weight_bytes].data
    if module.target.isa is WASM32:
        if path.suffix == ".o":
            raise BuildError(
                "WebAssembly's code and weights are two objects; write an archive: "
                f"{path.with_suffix('.a').name}"
            )
        objects = _wasm_objects(module, prefix, metadata)
    else:
        objects = [_elf_object(module, prefix, metadata)]
    if path.suffix == ".o":
        yield from objects[0].parts(weights)
        return
    yield archive_head([o.member for o in objects])
    for o in objects:
        yield member_header(o.member)
        yield from o.parts(weights)
        yield padding(o.member.size)


def _elf_object(module: Module, prefix: str, metadata: bytes) -> _Object:
    names = c_names(prefix)
    size = module.plan.weight_bytes
    merged = merge_objects(
        objects_of(module),
        names,
        constants={METADATA: metadata},
        weights_symbol=WEIGHTS,
        weight_bytes=size,
        aliases=LIBC,
    )
    return _Object("model.o", merged.head, merged.tail, tuple(names), size)


def _wasm_objects(module: Module, prefix: str, metadata: bytes) -> list[_Object]:
    from tunefarm.compiler.codegen.llvm_compile import compile_llvm, linked_text

    assert module.code is not None
    names, weights = c_names(prefix), f"{prefix}_weights_data"
    text = linked_text(
        [
            native_text(module.target.isa.triple),
            _wasm_addresses(weights, metadata),
            *(kernel.text for kernel in module.code.kernels),
            executor_text(module.plan, module.target),
        ],
        module.target,
        names,
    )
    code = compile_llvm(text, module.target)
    size = module.plan.weight_bytes
    head, tail = data_object(weights, size)
    return [
        _Object("code.o", code, b"", tuple(names)),
        _Object("weights.o", head, tail, (weights,), size),
    ]


def _wasm_addresses(weights: str, metadata: bytes) -> str:
    data = "".join(f"\\{byte:02X}" for byte in metadata)
    text = _ADDRESSES.replace(f"@{WEIGHTS} = external hidden", f"@{weights} = external")
    return text.replace(f"ret ptr @{WEIGHTS}", f"ret ptr @{weights}").replace(
        "external hidden constant i8", f'internal constant [{len(metadata)} x i8] c"{data}"'
    )

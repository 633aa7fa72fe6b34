"""Models as files: write a ``.so`` with its C header, and load it again with NumPy alone.

The library offers ``tunefarm_run``, the pool's functions, every kernel, ``tunefarm_weights`` and
``tunefarm_metadata`` (JSON: version, machine, CPU features, target, plan); for C programs the ones
they need are there under the model's own name too, so that two models fit into one program. An
object (``.o``) or a static archive (``.a``) offers those alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import WASM32
from tunefarm.compiler.runtime.arrays import address
from tunefarm.compiler.runtime.cpu import check_features, check_machine
from tunefarm.compiler.runtime.elf import EHDR, MAGIC, SHDR
from tunefarm.compiler.runtime.elf_link import link_library
from tunefarm.compiler.runtime.executor import RUN
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import (
    EXPORTS,
    POOL_ALIGNMENT,
    POOL_BYTES,
    POOL_VERSION,
)
from tunefarm.compiler.runtime.plan import ExecutionPlan, Port, nbytes
from tunefarm.compiler.runtime.pool import default_threads
from tunefarm.compiler.runtime.static import (
    LIBC,
    METADATA,
    WEIGHTS,
    c_names,
    objects_of,
    static_parts,
)
from tunefarm.compiler.target import Target

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.module import Module

FORMAT = 1
STATIC = (".o", ".a")  # what a linker takes into a program
FOREIGN = {
    **dict.fromkeys((".dll", ".lib", ".exe", ".pyd"), "Windows"),
    **dict.fromkeys((".dylib", ".bundle"), "macOS"),
}
"""Suffixes of files that are not made here, and the systems whose they are."""
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a library says of itself; ``name`` prefixes its C functions."""

    name: str
    machine: str
    features: tuple[str, ...]
    target: str
    plan: ExecutionPlan

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "pool": POOL_VERSION,
                "name": self.name,
                "machine": self.machine,
                "features": self.features,
                "target": self.target,
                "plan": json.loads(self.plan.to_json()),
            }
        )


def c_prefix(path: Path) -> str:
    """What a library's C functions are named after: its file's name without the last suffix, of
    which letters, digits and underscores stay."""
    stem = path.stem if path.suffix else path.name
    return re.sub(r"\W", "_", stem, flags=re.ASCII)


def names_functions(prefix: str) -> bool:
    """Whether C functions can begin with it."""
    return re.fullmatch(r"[A-Za-z_]\w*", prefix, re.ASCII) is not None


def export_library(module: Module, path: Path, name: str | None = None) -> None:
    """Write ``path`` and, beside it, the header ``path`` with suffix ``.h``.

    ``.o`` and ``.a`` make an object and a static archive, every other suffix a shared library.
    BuildError for one that promises a file for another system.
    """
    _check_suffix(path)
    if module.code is None:
        prefix = _copy_library(module, path, name)
    else:
        prefix = name or c_prefix(path)
        if not names_functions(prefix):
            raise BuildError(f"{prefix!r} cannot name C functions; pass name='model' or the like")
        with replacing(path) as file:
            if path.suffix in STATIC:
                for part in static_parts(module, prefix, metadata_text(module, prefix), path):
                    file.write(part)
            else:
                _write_library(module, file, prefix, path.name)
    with _telling(path):
        path.with_suffix(".h").write_text(
            header_text(module.plan, prefix, module.target.num_cores), encoding="utf-8"
        )


def _check_suffix(path: Path) -> None:
    """Refuse a name by which people and loaders would take the file for what it is not."""
    system = FOREIGN.get(path.suffix.lower())
    if system is not None:
        raise BuildError(
            f"{path} would be a file for {system}, and libraries are written for Linux alone "
            f"(ELF); export the model to {path.with_suffix('.so').name}"
        )


def _copy_library(module: Module, path: Path, name: str | None) -> str:
    """Copy the file that a module came from; return the name it was exported with."""
    assert module.path is not None
    if path.suffix in STATIC:
        raise BuildError(f"{module.path} is a shared library; build the model anew for {path.name}")
    old = _metadata_of(ctypes.CDLL(str(module.path.absolute())), module.path).name
    if name not in (None, old):
        raise BuildError(f"{module.path} has C functions named {old}; build it anew to rename them")
    with replacing(path) as file, module.path.open("rb") as source:
        shutil.copyfileobj(source, file)
    return old


def _write_library(module: Module, file: BinaryIO, prefix: str, soname: str) -> None:
    if module.target.isa is WASM32:
        raise BuildError("WebAssembly has no shared libraries here; write an archive (.a)")
    plan = module.plan
    exports = {name: name for name in (*EXPORTS, RUN, WEIGHTS, METADATA, *plan.kernels)}
    library = link_library(
        objects_of(module),
        exports | c_names(prefix),
        soname=soname,
        constants={METADATA: metadata_text(module, prefix)},
        weights_symbol=WEIGHTS,
        weight_bytes=plan.weight_bytes,
        aliases=LIBC,
    )
    file.write(library.head)
    file.write(module.weights[: plan.weight_bytes].data)
    file.write(library.tail)


def metadata_text(module: Module, prefix: str) -> bytes:
    """What the file says of itself, with a zero at the end."""
    assert module.code is not None
    target, features = module.target, module.code.features
    metadata = Metadata(prefix, target.isa.name, features, target.text, module.plan)
    return metadata.to_json().encode() + b"\0"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes ``path``'s place when the block ends, and vanishes if it fails."""
    with _telling(path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file, _telling(path):
            yield file
        with _telling(path):
            os.chmod(temporary, 0o644 if path.suffix in STATIC else 0o755)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """BuildError, in one sentence, for a file that cannot be written."""
    try:
        yield
    except OSError as error:
        folder = path.absolute().parent
        why = error.strerror or error if folder.is_dir() else f"{folder} is no folder"
        raise BuildError(f"{path} cannot be written: {why}") from None


def load_library(path: Path) -> Module:
    """The module in a file; BuildError if there is none, TargetError if this CPU cannot run it."""
    from tunefarm.compiler.runtime.module import Module

    _check_file(path)
    try:
        handle = ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from None
    metadata = _metadata_of(handle, path)
    check_features(metadata.features, str(path))
    plan = metadata.plan
    symbols = (*EXPORTS, RUN, *plan.kernels)
    library = Library({name: _address(handle, name) for name in symbols}, handle)
    target = Target(metadata.target)
    weights = _mapped(_address(handle, WEIGHTS), plan.weight_bytes)
    threads = min(target.num_cores, default_threads())
    return Module(plan, library, weights, address(weights), target, threads, None, path)


def _check_file(path: Path) -> None:
    """Refuse, before it is mapped, what is not a whole ELF library for this machine."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(EHDR.size)
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from None
    if len(head) < EHDR.size or not head.startswith(MAGIC):
        raise BuildError(f"{path} is no library that tunefarm exported: it is not an ELF file")
    fields = EHDR.unpack(head)
    machine, sections_at, count = fields[2], fields[6], fields[12]
    check_machine(_MACHINES.get(machine, f"ELF machine {machine}"), str(path))
    if size < sections_at + count * SHDR.size:
        raise BuildError(f"{path} is cut off at {size} bytes; export the model again")


def _metadata_of(handle: ctypes.CDLL, path: Path) -> Metadata:
    try:
        text = ctypes.string_at(_address(handle, METADATA))
    except ValueError:
        raise BuildError(f"{path} is no library that tunefarm exported") from None
    data: dict[str, Any] = json.loads(text)
    if data["format"] != FORMAT or data["pool"] != POOL_VERSION:
        raise BuildError(
            f"{path} has format {data['format']}.{data['pool']}, this tunefarm reads "
            f"{FORMAT}.{POOL_VERSION}; export the model again"
        )
    plan = ExecutionPlan.from_json(json.dumps(data["plan"]))
    return Metadata(data["name"], data["machine"], tuple(data["features"]), data["target"], plan)


def _address(handle: ctypes.CDLL, name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(handle, name))


def _mapped(place: int, count: int) -> NDArray[np.uint8]:
    """The bytes at an address, as a read-only array that does not own them."""
    if count == 0:
        return np.empty(0, np.uint8)
    array = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(place))
    array.flags.writeable = False
    assert address(array) == place
    return array


def header_text(plan: ExecutionPlan, prefix: str, cores: int) -> str:
    """The C header of a model for so many cores: sizes, names, and an inline starter of threads."""
    template = files("tunefarm.compiler.runtime").joinpath("model.h").read_text("utf-8")
    values = {
        "MODEL": prefix.upper(),
        "model": prefix,
        "cores": str(cores),
        "memory_bytes": str(max(plan.arena_bytes, 64)),
        "pool_bytes": str(POOL_BYTES),
        "pool_alignment": str(POOL_ALIGNMENT),
        "input_count": str(len(plan.inputs)),
        "output_count": str(len(plan.outputs)),
        "ports": "\n".join(
            [*_port_lines("inputs", plan.inputs), *_port_lines("outputs", plan.outputs)]
        ),
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def _port_lines(what: str, ports: tuple[Port, ...]) -> list[str]:
    return [
        f" *   {what}[{i}]  {port.name}: {port.type}, {nbytes(port.type)} bytes".replace(
            "*/", "* /"
        )
        for i, port in enumerate(ports)
    ]

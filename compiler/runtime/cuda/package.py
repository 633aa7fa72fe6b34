"""Models for GPUs as files: what ``CudaModule.export_library`` writes, and ``load_module`` reads.

    model.zip ::= model.json (format, target, plan, kernels), for each kernel its code
                  (kernels/N.ptx, kernels/N.cubin; kernels/N.o if it runs on the host), weights

PTX is always there, so that the driver of any later GPU can compile it, unless it is bound to one
architecture (sm_90a). Machine code is there beside it where NVIDIA's assembler was installed. The
weights are stored as they are and begin at a page, so that they are mapped.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.kernel import Kernel, is_of_host, kernel_of, told_of
from tunefarm.compiler.runtime.arrays import address
from tunefarm.compiler.runtime.cpu import check_features, check_machine, required_features
from tunefarm.compiler.runtime.cuda.loading import assembled_all
from tunefarm.compiler.runtime.export import FOREIGN, STATIC, replacing
from tunefarm.compiler.runtime.plan import ExecutionPlan, verify_plan
from tunefarm.compiler.runtime.weights import PAGE, kept_weights
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.cuda.module import CudaModule

FORMAT = 2  # 1: no launch has tensor maps
MAGIC = b"PK\x03\x04"
_OF_LINKERS = (".so", *STATIC, *FOREIGN)
_JSON, _WEIGHTS = "model.json", "weights"
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of the name and of what follows it
_PADDING = 0xD935  # the extra field by which others align members, too
_ZIP64_BYTES = 20  # that the header has besides


def export_package(module: CudaModule, path: Path, name: str | None = None) -> None:
    """Write a module for GPUs to a file; BuildError, in one sentence, if it cannot be written."""
    if path.suffix.lower() in _OF_LINKERS or name is not None:
        raise BuildError(
            f"a module for {module.target} is no library for C, which {path.name} would be; "
            "export it to a file like model.zip, without a name"
        )
    kernels = (*assembled_all(module.kernels, module.target.gpu.name), *module.host_kernels)
    with replacing(path) as file, zipfile.ZipFile(file, "w") as package:
        _add(package, _JSON, json.dumps(_described(module, kernels), indent=1).encode())
        for number, kernel in enumerate(kernels):
            for suffix, code in _codes(kernel):
                _add(package, f"kernels/{number}{suffix}", code)
        _add_weights(package, file, module.weights[: module.plan.weight_bytes])


def _described(module: CudaModule, kernels: tuple[Kernel, ...]) -> dict[str, Any]:
    told = {
        "format": FORMAT,
        "compiler": compiler_version("cuda"),
        "target": module.target.text,
        "plan": json.loads(module.plan.to_json()),
        "kernels": list(map(told_of, kernels)),
    }
    if module.host_kernels:
        from tunefarm.compiler.codegen.llvm_compile import features

        host = Target.host()
        needed = required_features(host, features(host))
        told["host"] = {"machine": host.isa.name, "features": needed}
    return told


def _codes(kernel: Kernel) -> Iterator[tuple[str, bytes]]:
    """The suffixes and bytes of a kernel's members."""
    yield ".o" if is_of_host(kernel) else ".ptx", kernel.object
    if kernel.cubin is not None:
        yield ".cubin", kernel.cubin.code


def _add(package: zipfile.ZipFile, name: str, data: bytes) -> None:
    package.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def _add_weights(package: zipfile.ZipFile, file: BinaryIO, weights: NDArray[np.uint8]) -> None:
    """The last member, as it is, from a whole page of the file on."""
    info = zipfile.ZipInfo(_WEIGHTS)
    begin = file.tell() + 30 + len(_WEIGHTS) + _ZIP64_BYTES + 4
    padding = -begin % PAGE
    info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
    with package.open(info, "w", force_zip64=True) as member:
        member.write(weights.data)


def is_package(path: Path) -> bool:
    """Whether a file may be one of these; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def load_package(path: Path) -> CudaModule:
    """The module in a file. It asks no driver: what the GPU here cannot run is told at its first
    run. BuildError for what is no such file, or one of a newer tunefarm; TargetError if kernels of
    it need another processor."""
    from tunefarm.compiler.runtime.cuda.module import CudaModule

    try:
        with zipfile.ZipFile(path) as package:
            told = json.loads(package.read(_JSON))
            _check_format(path, told)
            kernels = [
                _kernel(package, number, each) for number, each in enumerate(told["kernels"])
            ]
            weights = kept_weights(_mapped(path, package.getinfo(_WEIGHTS)))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BuildError(
            f"{path} is no module that tunefarm exported, or not all of it: {error}"
        ) from None
    if host := told.get("host"):
        check_machine(host["machine"], str(path))
        check_features(tuple(host["features"]), str(path))
    return CudaModule(
        verify_plan(ExecutionPlan.from_json(json.dumps(told["plan"]))),
        None,
        weights,
        address(weights),
        Target(told["target"]),
        1,
        path=path,
        kernels=tuple(k for k in kernels if not is_of_host(k)),
        host_kernels=tuple(filter(is_of_host, kernels)),
    )


def _check_format(path: Path, told: dict[str, Any]) -> None:
    if told["format"] > FORMAT:
        raise BuildError(
            f"{path} has format {told['format']}, this tunefarm reads up to {FORMAT}; update it, "
            "or export the model again"
        )


def _kernel(package: zipfile.ZipFile, number: int, told: dict[str, Any]) -> Kernel:
    host = f"kernels/{number}.o"
    code = host if host in package.namelist() else f"kernels/{number}.ptx"
    machine_code = package.read(f"kernels/{number}.cubin") if told["cubin"] else b""
    return kernel_of(told, package.read(code), machine_code=machine_code)


def _mapped(path: Path, info: zipfile.ZipInfo) -> NDArray[np.uint8]:
    """The bytes of a stored member, read-only."""
    if not info.file_size:
        return np.empty(0, np.uint8)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    begin = info.header_offset + _LOCAL_HEADER.size + name + extra
    return np.memmap(path, np.uint8, "r", begin, (info.file_size,))

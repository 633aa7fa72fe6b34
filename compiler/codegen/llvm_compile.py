"""LLVM text → object code or assembly, in this process, with llvmlite.

    text ─parse─► module ─(optimise)─► target machine ─► object bytes ─► object cache

The emitter's text is clean SSA whose schedule has decided everything, so by default LLVM only
selects, schedules and allocates: 116 to 230 kernels a second instead of 48 with its optimiser.
LLVM is loaded and initialised on first use. Its wheel has assertions on: a malformed module can
abort the process, so candidates are compiled in processes that may die.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler import settings
from tunefarm.compiler.codegen import object_cache
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.host import llvm_cpu
from tunefarm.compiler.processors import X86_64, Isa
from tunefarm.compiler.target import Target

_CACHE_VERSION = "4"
_LOCK = threading.Lock()


def compile_llvm(
    text: str,
    target: Target,
    optimize: bool = False,
    level: int = 2,
    cache: bool = True,
    verify: bool = True,
) -> bytes:
    """The position-independent object code of a module.

    ``optimize`` runs LLVM's O1 pipeline first, without its vectorizers and unroller; ``level`` is
    the code generator's (0 to 3; 0 reaches a third of the speed). With ``cache`` the object cache
    is asked first. ``verify`` False, for candidates, saves 3% of LLVM's time: a module that is
    malformed may abort the process. Raises BuildError with LLVM's message if the text is wrong.
    """
    if not cache:
        return _emit(text, target, optimize, level, verify)
    key = cache_key(text, target, optimize, level)
    code = object_cache.load(key)
    if code is None:
        code = _emit(text, target, optimize, level, verify)
        object_cache.store(key, code)
    return code


def assembly(text: str, target: Target, optimize: bool = False, level: int = 2) -> str:
    """The assembly that ``compile_llvm`` would encode, with LLVM's comments."""
    with _LOCK:
        machine = _machine(target.isa, target.mcpu, features(target), level)
        module = _parse(text, target, machine, optimize)
        machine.set_asm_verbosity(True)
        try:
            return str(machine.emit_assembly(module))
        finally:
            module.close()


def linked_text(texts: Sequence[str], target: Target, exports: Mapping[str, str]) -> str:
    """Modules as one text that defines no more than ``exports`` (offered name → function) names.

    Raises BuildError with LLVM's message if two define the same.
    """
    from llvmlite import binding

    with _LOCK:
        machine = _machine(target.isa, target.mcpu, features(target), 2)
        whole, *rest = (_parse(text, target, machine, False) for text in texts)
        try:
            for module in rest:
                whole.link_in(module)
        except RuntimeError as error:
            raise BuildError(f"the modules do not link: {_one_line(error)}") from None
        offered = {symbol: name for name, symbol in exports.items()}
        for function in whole.functions:
            if function.is_declaration:
                continue
            if function.name in offered:
                function.name = offered[function.name]
            else:
                function.linkage = binding.Linkage.internal
        return str(whole)


def cache_key(text: str, target: Target, optimize: bool = False, level: int = 2) -> str:
    """SHA-256 over all that decides the object code: text, CPU, features, LLVM and options."""
    parts = (
        _CACHE_VERSION,
        llvm_version(),
        target.isa.triple,
        target.mcpu,
        features(target),
        f"optimize={optimize} level={level}",
        text,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def features(target: Target) -> str:
    """LLVM's feature string: this machine's if the target is its CPU, else the CPU model's own.

    Those that code for the instruction set always uses are added, and ``-mattr``'s at the end. On
    x86-64 512-bit registers are preferred to 256-bit ones everywhere, and code for AMD's processors
    does without the instructions that it alone has.
    """
    words = [_host_features()] if target.mcpu == llvm_cpu() else []
    words += [target.isa.features] if target.isa.features else []
    if "mattr" in target.options:
        words.append(target.options["mattr"])
    return ",".join(words)


@functools.cache
def llvm_version() -> str:
    """The LLVM and llvmlite versions that make the code."""
    import llvmlite
    from llvmlite import binding

    return f"{'.'.join(map(str, binding.llvm_version_info))}/{llvmlite.__version__}"


@functools.cache
def _host_features() -> str:
    from llvmlite import binding

    return str(binding.get_host_cpu_features().flatten())


def _emit(text: str, target: Target, optimize: bool, level: int, verify: bool) -> bytes:
    with _LOCK:
        machine = _machine(target.isa, target.mcpu, features(target), level)
        module = _parse(text, target, machine, optimize, verify)
        try:
            code = bytes(machine.emit_object(module))
        except RuntimeError as error:
            raise BuildError(f"LLVM cannot generate code for {target}: {error}") from None
        finally:
            module.close()
    return code


def _parse(text: str, target: Target, machine: Any, optimize: bool, verify: bool = True) -> Any:
    from llvmlite import binding

    try:
        module = binding.parse_assembly(text)
    except RuntimeError as error:
        raise BuildError(f"LLVM cannot read the module: {_one_line(error)}") from None
    module.triple = target.isa.triple
    module.data_layout = _data_layout(machine)
    if verify and settings.VERIFY_LLVM.get():
        try:
            module.verify()
        except RuntimeError as error:
            raise BuildError(f"LLVM finds the module invalid: {_one_line(error)}") from None
    if optimize:
        _run_passes(module, machine)
    return module


def _run_passes(module: Any, machine: Any) -> None:
    from llvmlite import binding

    options = binding.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


@functools.cache
def _initialise() -> None:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # the runtime has inline assembly
    # Loop strength reduction takes 85% of the code generator's time on convolution kernels and
    # gains nothing: the emitter has already put address arithmetic where it belongs.
    binding.set_option("tunefarm", "--disable-lsr")
    # Of an address that many accesses share, CodeGenPrepare asks for each of them whether all the
    # others could take it up: a twentieth of LLVM's work, for code that is no faster.
    binding.set_option("tunefarm", "--cgp-max-address-users-to-scan=4")
    # Unrolled sums of integers, which it may add up in any order, it adds up in pairs: twelve
    # registers of sums become twenty-four, most of them on the stack.
    if _has_x86():
        binding.set_option("tunefarm", "--x86-machine-combiner=false")


def _has_x86() -> bool:
    """Whether LLVM knows the options of x86-64: one that it does not know ends the process."""
    from llvmlite import binding

    try:
        binding.Target.from_triple(X86_64.triple)
    except RuntimeError:
        return False
    return True


@functools.cache
def _machine(isa: Isa, cpu: str, feature_text: str, level: int) -> Any:
    from llvmlite import binding

    _initialise()
    return binding.Target.from_triple(isa.triple).create_target_machine(
        cpu=cpu,
        features=feature_text,
        opt=level,
        reloc="pic",
        codemodel="small",
        abiname=isa.abi,
    )


@functools.cache
def _data_layout(machine: Any) -> str:
    return str(machine.target_data)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

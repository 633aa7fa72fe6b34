"""Building: every step from a workload and a config to code, and from a model to a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tunefarm.compiler import dump, kernel_cache
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.c_model import emit_model_c
from tunefarm.compiler.codegen.llvm import LlvmKernel, emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly, compile_llvm
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.extract import is_tunable
from tunefarm.compiler.ir import Call, Function, IRModule, TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.link import link_model
from tunefarm.compiler.printer import print_function
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.transform.bounds_check import add_bounds_checks
from tunefarm.compiler.tir.transform.lower import PHASES, lower
from tunefarm.compiler.transform.pipeline import STEPS, optimize
from tunefarm.compiler.transform.plan_memory import kernel_calls, plan_memory
from tunefarm.compiler.workload import Workload

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.checked import CheckedFunction
    from tunefarm.compiler.runtime.kernel import KernelFunction
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.compiler.runtime.plan import ExecutionPlan


def build_kernel(workload: Workload, target: Target, config: Config, cache: bool = True) -> Kernel:
    """Schedule, lower, print and compile one workload.

    Raises ScheduleError if the config cannot be applied, BuildError if there is no code for it.
    """
    return _build_kernel(workload, target, config, dump.begin(workload.summary), cache)


def _build_kernel(
    workload: Workload, target: Target, config: Config, stages: dump.Stages, cache: bool = True
) -> Kernel:
    cache = cache and not stages
    found = kernel_cache.load(workload, target, config) if cache else None
    if found is not None:
        return found
    stages.write("function", lambda: _described(workload, target, config))
    stages.write("program", lambda: str(create_program(workload.function, kernel_name(workload))))
    program = _scheduled(workload, target, config)
    stages.write("scheduled", program.__str__)
    kernel = _compile(program, target, stages, cache=False)
    if cache:
        kernel_cache.store(workload, target, config, kernel)
    return kernel


def _described(workload: Workload, target: Target, config: Config) -> str:
    settings = "".join(f"# {name} = {value}\n" for name, value in config.items())
    return f"# {workload.summary}\n# {target}\n{settings}\n{print_function(workload.function)}"


def kernel_name(workload: Workload) -> str:
    """What the kernel of a workload is called, whatever its config."""
    return f"tunefarm_{workload.key[:16]}"


def _scheduled(workload: Workload, target: Target, config: Config) -> PrimFunc:
    program = schedule_workload(workload, target, config)
    return replace(program, name=kernel_name(workload))


def build_module(module: IRModule, target: Target) -> Module:
    """Build a model with the records of the surrounding ``apply_history_best``.

    Raises BuildError for what has no code, HistoryError for an untuned task in strict mode.
    """
    from tunefarm.compiler.runtime.executor import executor_text
    from tunefarm.compiler.runtime.module import create_module

    stages = dump.begin("model")
    stages.write("import", module.__str__)
    with stages.passes([step.name for step in STEPS]):
        module = optimize(module, target)
    workloads = {call: _workload_of(call) for call in kernel_calls(module.main)}
    configs = choose_configs(Counter(workloads.values()), target)
    kernels = {
        w: _build_kernel(w, target, config, stages.inside(w.summary))
        for w, config in configs.items()
    }
    made = {call: kernels[w] for call, w in workloads.items()}
    memory = plan_memory(module.main, {c: kernel.workspace_bytes for c, kernel in made.items()})
    linked = link_model(module, memory, made)
    stages.write("memory-plan", lambda: dump.memory_plan_text(linked.plan, memory.peak_bytes))
    stages.write("executor", lambda: executor_text(linked.plan, target), ".ll")
    return create_module(
        linked.plan,
        list(kernels.values()),
        linked.weights,
        target,
        c_source=lambda: model_c_source(linked.plan, configs, target),
    )


def model_c_source(plan: ExecutionPlan, configs: Mapping[Workload, Config], target: Target) -> str:
    """C99 of a model's kernels, each scheduled anew, and a function that calls them in order."""
    return emit_model_c(plan, [lower(_scheduled(w, target, c)) for w, c in configs.items()])


def choose_configs(counts: Mapping[Workload, int], target: Target) -> dict[Workload, Config]:
    """The best known config of every workload, given with how often a run calls it; one look-up
    for those that are worth tuning."""
    from tunefarm.compiler.dispatch import current_history

    tunable = [w for w in counts if is_tunable(w.function)]
    decisions = current_history().lookup(tunable, target, counts)
    chosen = {d.workload: d.config for d in decisions}
    return {w: chosen[w] if w in chosen else config_space(w, target).default for w in counts}


def _workload_of(call: Call) -> Workload:
    assert isinstance(call.op, Function)
    return Workload.from_function(call.op)


def build_function(program: PrimFunc, target: Target) -> KernelFunction:
    """A program as a function of arrays; its constant parameters are taken as they are packed."""
    from tunefarm.compiler.runtime.kernel import load_kernel

    kernel = build_program(program, target)
    return load_kernel(
        [kernel.object],
        kernel.name,
        kernel.params,
        kernel.outputs,
        target=target,
        workspace_bytes=kernel.workspace_bytes,
        text=kernel.text,
        c_source=lambda: emit_c(lower(program)),
    )


def build_checked(program: PrimFunc, target: Target) -> CheckedFunction:
    """A program whose accesses are checked as it runs: slow, serial, and never from the cache of
    kernels. A call raises BoundsError where the plain one would touch foreign memory."""
    from tunefarm.compiler.runtime.checked import CheckedFunction

    checked, accesses = add_bounds_checks(program)
    return CheckedFunction(build_function(checked, target), accesses)


def build_program(program: PrimFunc, target: Target, cache: bool = True) -> Kernel:
    """Lower, print and compile a program (scheduled or not)."""
    stages = dump.begin(program.name)
    stages.write("program", program.__str__)
    return _compile(program, target, stages, cache)


def _compile(program: PrimFunc, target: Target, stages: dump.Stages, cache: bool) -> Kernel:
    if target.kind != "llvm":
        raise BuildError(f"target kind {target.kind!r} has no code generator here; use llvm")
    lowered = lower(program, extra=stages.phases([phase.__name__ for phase in PHASES]))
    code = emit_llvm(lowered, target)
    stages.write("llvm", lambda: code.text, ".ll")
    stages.write("assembly", lambda: assembly(code.text, target), ".s")
    return kernel_of(lowered, code, compile_llvm(code.text, target, cache=cache))


def kernel_of(lowered: PrimFunc, code: LlvmKernel, object_code: bytes) -> Kernel:
    return Kernel(
        code.name,
        object_code,
        code.text,
        tuple(TensorType(p.shape, p.dtype) for p in lowered.params),
        lowered.outputs,
        dict(lowered.layouts),
        code.workspace_bytes,
        code.parallel,
    )

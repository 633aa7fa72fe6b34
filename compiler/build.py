"""Building: every step from a workload and a config to code, and from a model to a module."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tunefarm.compiler import dump, kernel_cache
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.c_model import emit_model_c
from tunefarm.compiler.codegen.llvm import LlvmKernel, emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly, compile_llvm
from tunefarm.compiler.errors import BuildError, ScheduleError, UnusedPrecisionWarning
from tunefarm.compiler.extract import is_tunable
from tunefarm.compiler.gpu.build import build_gpu_program
from tunefarm.compiler.gpu.launches import WORKSPACE_ALIGN
from tunefarm.compiler.ir import Call, Function, IRModule, TensorType, post_order
from tunefarm.compiler.kernel import Kernel, of_host
from tunefarm.compiler.link import link_model
from tunefarm.compiler.printer import print_function
from tunefarm.compiler.row_pitch import RowPitch, with_row_pitch
from tunefarm.compiler.runtime.arrays import ALIGNMENT
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.transform.bounds_check import add_bounds_checks
from tunefarm.compiler.tir.transform.lower import PHASES, lower
from tunefarm.compiler.transform.lower_precision import target_of, without_effect
from tunefarm.compiler.transform.pipeline import STEPS, optimize
from tunefarm.compiler.transform.plan_memory import Part, kernel_calls, plan_memory
from tunefarm.compiler.transform.write_parts import joined_parts, row_pitch
from tunefarm.compiler.workload import Workload

if TYPE_CHECKING:
    from tunefarm.compiler.runtime.checked import CheckedFunction
    from tunefarm.compiler.runtime.cuda.kernel import CudaKernel
    from tunefarm.compiler.runtime.kernel import KernelFunction
    from tunefarm.compiler.runtime.module import Module


def build_kernel(workload: Workload, target: Target, config: Config, cache: bool = True) -> Kernel:
    """Schedule, lower, print and compile one workload.

    Raises ScheduleError if the config cannot be applied, BuildError if there is no code for it.
    """
    return _build_kernel(_Variant(workload, config), target, dump.begin(workload.summary), cache)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A kernel of a model: its workload, its config, and how it writes a result with gaps."""

    workload: Workload
    config: Config = field(compare=False)
    form: RowPitch | None = None

    @property
    def name(self) -> str:
        name = kernel_name(self.workload)
        return f"{name}_{self.form.rows}x{self.form.pitch}" if self.form else name

    def scheduled(self, target: Target) -> PrimFunc:
        program = schedule_workload(self.workload, target, self.config)
        program = with_row_pitch(program, self.form) if self.form else program
        return replace(program, name=self.name)


def _build_kernel(
    variant: _Variant, target: Target, stages: dump.Stages, cache: bool = True
) -> Kernel:
    workload, config, form = variant.workload, variant.config, variant.form
    cache = cache and not stages
    found = kernel_cache.load(workload, target, config, form) if cache else None
    if found is not None:
        return found
    stages.write("function", lambda: _described(workload, target, config))
    stages.write("program", lambda: str(create_program(workload.function, kernel_name(workload))))
    program = variant.scheduled(target)
    stages.write("scheduled", program.__str__)
    kernel = _compile(program, target, stages, cache=False, verify=cache or bool(stages))
    if cache:
        kernel_cache.store(workload, target, config, kernel, form)
    return kernel


def _described(workload: Workload, target: Target, config: Config) -> str:
    settings = "".join(f"# {name} = {value}\n" for name, value in config.items())
    return f"# {workload.summary}\n# {target}\n{settings}\n{print_function(workload.function)}"


def kernel_name(workload: Workload) -> str:
    """What the kernel of a workload is called, whatever its config."""
    return f"tunefarm_{workload.key[:16]}"


def plain_name(kernel: str) -> str:
    """The ``kernel_name`` of what a model's kernel computes, however it writes its result."""
    return "_".join(kernel.split("_")[:2])


def build_module(module: IRModule, target: Target, on_host: Collection[str] = ()) -> Module:
    """Build a model with the records of the surrounding ``apply_history_best``.

    Of a model for a GPU, the nodes ``on_host`` run on this host's processor: those of these names,
    and those of kernels with these operators. Raises BuildError for what has no code and for a
    name that no node has, HistoryError for an untuned task in strict mode.
    """
    precision, target = str(module.main.attrs.get("precision") or ""), target_of(module, target)
    stages = dump.begin("model")
    stages.write("import", module.__str__)
    with stages.passes([step.name for step in STEPS]):
        module = optimize(module, target)
    workloads = {call: _workload_of(call) for call in kernel_calls(module.main)}
    if told := without_effect(precision, workloads.values(), target):
        warnings.warn(told, UnusedPrecisionWarning, stacklevel=3)
    apart = _on_host(workloads, target, on_host)
    here = {c: w for c, w in workloads.items() if c not in apart}
    kernels = _Kernels(choose_configs(Counter(here.values()), target), target, stages)
    parts = list(_written_parts(module.main, here, kernels, shared=target.kind == "llvm"))
    forms = {part.call: row_pitch(part) for part in parts}
    wholes = {part.whole for part in parts}
    made = {c: kernels[w, forms.get(c)] for c, w in here.items() if c not in wholes}
    made |= _host_kernels(apart, precision, stages)
    used = {kernel.name: kernel for kernel in made.values()}
    scratch = {c: kernel.workspace_bytes for c, kernel in made.items()}
    alignment = WORKSPACE_ALIGN if target.kind == "cuda" else ALIGNMENT
    memory = plan_memory(module.main, scratch, parts=parts, alignment=alignment)
    linked = link_model(module, memory, made, alignment)
    stages.write("memory-plan", lambda: dump.memory_plan_text(linked.plan, memory.peak_bytes))
    if target.kind == "cuda":
        from tunefarm.compiler.runtime.cuda.module import create_cuda_module

        return create_cuda_module(linked.plan, list(used.values()), linked.weights, target)
    from tunefarm.compiler.runtime.executor import executor_text
    from tunefarm.compiler.runtime.module import create_module

    stages.write("executor", lambda: executor_text(linked.plan, target), ".ll")
    return create_module(
        linked.plan,
        list(used.values()),
        linked.weights,
        target,
        c_source=lambda: emit_model_c(linked.plan, kernels.lowered(used)),
    )


def _written_parts(
    main: Function, workloads: Mapping[Call, Workload], kernels: _Kernels, *, shared: bool
) -> Iterator[Part]:
    """The parts of concatenations that are written where they belong, and may be read there if they
    are ``shared``."""
    for joined in joined_parts(main, shared=shared):
        known = all(p.call in workloads and p.whole in workloads for p in joined)
        if known and all(kernels.can_write(workloads[p.call], row_pitch(p)) for p in joined):
            yield from joined


def _on_host(
    workloads: Mapping[Call, Workload], target: Target, names: Collection[str]
) -> dict[Call, Workload]:
    """The calls that are to run on the host."""
    if names and target.kind != "cuda":
        raise BuildError(f"on_host is for models for GPUs; {target} runs on the host as a whole")
    found: dict[Call, Workload] = {}
    for name in names:
        mine = {c: w for c, w in workloads.items() if name in (c.name, *_operators(w.function))}
        if not mine:
            has = ", ".join(dict.fromkeys(c.name for c in workloads if c.name))
            raise BuildError(
                f"on_host names {name!r}, which is no node and no operator of the model; its "
                f"nodes: {has or 'none has a name'}"
            )
        found |= mine
    return found


def _host_kernels(
    workloads: Mapping[Call, Workload], precision: str, stages: dump.Stages
) -> dict[Call, Kernel]:
    """The kernels of calls that run on the host, by this host's records."""
    if not workloads:
        return {}
    target = Target.host().allowing(precision)
    kernels = _Kernels(choose_configs(Counter(workloads.values()), target), target, stages)
    return {c: of_host(kernels[w, None]) for c, w in workloads.items()}


def _operators(function: Function) -> list[str]:
    nodes = post_order(function.body)
    return [n.op for n in nodes if isinstance(n, Call) and isinstance(n.op, str)]


class _Kernels:
    """The kernels of a model, each built when it is first asked for."""

    def __init__(
        self, configs: Mapping[Workload, Config], target: Target, stages: dump.Stages
    ) -> None:
        self._configs, self._target, self._stages = configs, target, stages
        self._made: dict[_Variant, Kernel] = {}

    def __getitem__(self, key: tuple[Workload, RowPitch | None]) -> Kernel:
        workload, form = key
        variant = _Variant(workload, self._configs[workload], form)
        if variant not in self._made:
            stages = self._stages.inside(workload.summary)
            self._made[variant] = _build_kernel(variant, self._target, stages)
        return self._made[variant]

    def can_write(self, workload: Workload, form: RowPitch | None) -> bool:
        """Whether the kernel of a part writes its result so."""
        try:
            return bool(self[workload, form])
        except ScheduleError:
            if form is None:
                raise
            return False

    def lowered(self, names: Collection[str]) -> list[PrimFunc]:
        """The programs of the kernels with these names, scheduled anew."""
        return [lower(v.scheduled(self._target)) for v in self._made if v.name in names]


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


def build_function(program: PrimFunc, target: Target) -> KernelFunction | CudaKernel:
    """A program as a function of arrays; its constant parameters are taken as they are packed.

    TargetError if this host lacks the target's instructions, or a GPU that runs its code.
    """
    if target.kind == "cuda":
        from tunefarm.compiler.runtime.cuda.kernel import load_kernel

        return load_kernel(build_program(program, target), target)
    return _build_function(program, target)


def _build_function(program: PrimFunc, target: Target) -> KernelFunction:
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
    kernels. A call raises BoundsError where the plain one would touch foreign memory. BuildError
    for a GPU."""
    from tunefarm.compiler.runtime.checked import CheckedFunction

    if target.kind == "cuda":
        raise BuildError(
            f"code for {target} has no bounds checks; build the program for llvm, or run it with "
            "TUNEFARM_CUDA=emulated, which finds accesses outside of all memory"
        )
    checked, accesses = add_bounds_checks(program)
    return CheckedFunction(_build_function(checked, target), accesses)


def build_program(program: PrimFunc, target: Target, cache: bool = True) -> Kernel:
    """Lower, print and compile a program (scheduled or not)."""
    stages = dump.begin(program.name)
    stages.write("program", program.__str__)
    return _compile(program, target, stages, cache)


def _compile(
    program: PrimFunc, target: Target, stages: dump.Stages, cache: bool, verify: bool = True
) -> Kernel:
    if target.kind == "cuda":
        return build_gpu_program(program, target, stages)
    if target.kind != "llvm":
        raise BuildError(f"target kind {target.kind!r} has no code generator here; use llvm")
    lowered = lower(program, extra=stages.phases([phase.__name__ for phase in PHASES]))
    code = emit_llvm(lowered, target)
    stages.write("llvm", lambda: code.text, ".ll")
    stages.write("assembly", lambda: assembly(code.text, target), ".s")
    return kernel_of(lowered, code, compile_llvm(code.text, target, cache=cache, verify=verify))


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

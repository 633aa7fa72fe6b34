"""Memory plans: live values never overlap, dead ones are reused, views and results cost nothing."""

import itertools

import numpy as np
import pytest
from tunefarm.compiler.evaluate import call_reference
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    post_order,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.fuse_ops import fuse_ops
from tunefarm.compiler.transform.plan_memory import (
    MemoryPlan,
    Place,
    Store,
    Value,
    outputs_of,
    plan_memory,
    stored_value,
)

RNG = np.random.default_rng(5)


def fused(params: list[Var], body: Expr) -> Function:
    module = IRModule({"main": Function(tuple(params), body)})
    return fuse_ops(module, Target("llvm")).main


def run(main: Function, plan: MemoryPlan, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run the plan in a poisoned arena, as an executor would."""
    arena = np.full(plan.arena_bytes, 0xA5, np.uint8)
    outputs = [np.zeros(o.type.shape, o.type.dtype) for o in outputs_of(main)]  # type: ignore[union-attr]

    def bytes_at(place: Place) -> np.ndarray:
        match place.store:
            case Store.ARENA:
                return arena[place.at : place.at + place.size_bytes]
            case Store.INPUT:
                return inputs[place.at].reshape(-1).view(np.uint8)
            case Store.CONSTANT:
                return plan.constants[place.at].data.reshape(-1).view(np.uint8)
            case Store.OUTPUT:
                return outputs[place.at].reshape(-1).view(np.uint8)

    for node in plan.calls:
        for scratch in [plan.scratch[node]] if node in plan.scratch else []:
            bytes_at(scratch)[:] = 0x5A
        operands = [
            bytes_at(plan.place(a)).view(a.type.dtype).reshape(a.type.shape).copy()  # type: ignore[union-attr]
            for a in node.args
        ]
        made = call_reference(node, operands)
        results = made if isinstance(made, tuple) else (made,)
        for place, result in zip(plan.results(node), results, strict=True):
            assert place.at % 64 == 0 or place.store is not Store.ARENA
            bytes_at(place)[:] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
    for source, index in plan.copies:
        outputs[index].reshape(-1).view(np.uint8)[:] = bytes_at(source)
    return outputs


def check(main: Function, **options: object) -> MemoryPlan:
    from tunefarm.compiler.evaluate import evaluate

    plan = plan_memory(main, **options)  # type: ignore[arg-type]
    inputs = [RNG.standard_normal(p.type.shape).astype(np.float32) for p in main.params]
    for got, want in zip(run(main, plan, inputs), evaluate(main, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    assert plan.peak_bytes <= plan.arena_bytes
    return plan


def chain(length: int, rows: int = 32) -> Function:
    x = Var("x", TensorType((rows, 32), "float32"))
    y: Expr = x
    for _ in range(length):
        y = call("softmax", y, axis=-1)
    return fused([x], y)


def test_a_chain_needs_two_buffers_whatever_its_length() -> None:
    assert check(chain(12)).arena_bytes == 2 * 32 * 32 * 4


@pytest.mark.parametrize(("rows", "alignment", "padding"), [
    (512, 64, 896), (511, 64, 0), (517, 64, 256), (512, 256, 0), (32, 64, 0),
])  # fmt: skip
def test_large_values_begin_in_other_sets_of_the_caches(
    rows: int, alignment: int, padding: int
) -> None:
    """896 bytes beyond a multiple of 1024 from each other, where that keeps to the alignment."""
    plan = check(chain(4, rows), alignment=alignment)
    results = [plan.results(call)[0] for call in plan.calls]
    first, second = sorted({place.at for place in results if place.store is Store.ARENA})
    size = rows * 32 * 4
    assert (first, second) == (0, size + padding)
    assert plan.arena_bytes == second + size


def test_one_kernel_needs_no_arena() -> None:
    assert check(chain(1)).arena_bytes == 0


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_keep_live_values_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = Var("x", TensorType((6, 8), "float32"))
    pool: list[Expr] = [x]
    for _ in range(25):
        a, b = (pool[int(i)] for i in rng.integers(max(0, len(pool) - 5), len(pool), 2))
        kind = int(rng.integers(4))
        if kind == 0:
            made: Expr = call("softmax", a, axis=-1)
        elif kind == 1:
            made = call("add", a, b)
        elif kind == 2:
            square = call("matmul", a, b, transpose_b=True)
            made = call("matmul", square, b)
            made = call("multiply", made, Constant(np.array(0.01, np.float32)))
        else:
            made = call("reshape", call("reshape", call("tanh", a), shape=(48,)), shape=(6, 8))
        pool.append(made)
    main = fused([x], Tuple((pool[-1], pool[10], pool[-1], x)))
    calls = [n for n in post_order(main.body) if isinstance(n, Call)]
    scratch = {c: int(rng.integers(0, 500)) for c in calls}
    plan = check(main, workspace_bytes=scratch)
    assert {index for _, index in plan.copies} >= {2, 3}
    apart = check(main, workspace_bytes=scratch, in_place=False)
    assert apart.peak_bytes == fullest_step(apart)
    assert plan.peak_bytes >= max(c.size_bytes for c in plan.scratch.values())


def fullest_step(plan: MemoryPlan) -> int:
    """The most that one call needs: what is alive, its results, and its workspace."""
    made = {v: n for n, c in enumerate(plan.calls) for v in plan.places if v[0] is c}
    read: dict[Value, int] = {}
    for n, c in enumerate(plan.calls):
        read.update({stored_value(a): n for a in c.args})
    needs = [0] * len(plan.calls)
    for value, first in made.items():
        if plan.places[value].store is Store.ARENA:
            for n in range(first, max(first, read.get(value, first)) + 1):
                needs[n] += aligned(plan.places[value].size_bytes)
    for c, place in plan.scratch.items():
        needs[plan.calls.index(c)] += aligned(place.size_bytes)
    return max(needs)


def aligned(size: int) -> int:
    return -(-size // 64) * 64


def test_a_workspace_fits_into_room_that_dead_values_left() -> None:
    main = chain(4)
    first, *_, last = plan_memory(main).calls
    spare = {first: 4096, last: 4096}  # one other value is alive beside each
    assert check(main, workspace_bytes=spare).arena_bytes == plan_memory(main).arena_bytes
    assert check(main, workspace_bytes={first: 9000}).arena_bytes == 4096 + 9024


def test_in_place_needs_less() -> None:
    x = Var("x", TensorType((64, 64), "float32"))
    y: Expr = call("softmax", x, axis=-1)
    z = call("softmax", call("transpose", y, axes=(1, 0)), axis=-1)
    body = call("softmax", call("add", call("exp", y), z), axis=-1)
    main = fused([x], body)
    assert check(main).arena_bytes < check(main, in_place=False).arena_bytes


def test_a_sum_takes_the_place_of_its_residual() -> None:
    x = Var("x", TensorType((16, 16), "float32"))
    w = Constant(RNG.standard_normal((16, 16)).astype(np.float32))
    residual = call("tanh", x)
    y = call("add", call("matmul", call("softmax", residual, axis=-1), w), residual)
    main = fused([x], call("softmax", y, axis=-1))
    plan = check(main)
    first, _, product, _ = plan.calls
    assert plan.results(product) == plan.results(first)


def test_what_a_kernel_reads_twice_is_not_overwritten() -> None:
    x = Var("x", TensorType((16, 16), "float32"))
    w = Constant(RNG.standard_normal((16, 16)).astype(np.float32))
    shown = call("reshape", call("tanh", x), shape=(16, 1, 16))
    residual = call("reshape", shown, shape=(16, 16))
    for other in (residual, call("reshape", call("reshape", shown, shape=(256,)), shape=(16, 16))):
        y = call("add", call("matmul", other, w), residual)
        plan = check(fused([x], call("softmax", y, axis=-1)))
        first, product, _ = plan.calls
        assert plan.results(product) != plan.results(first)


def test_views_share_their_operand_and_are_not_run() -> None:
    x = Var("x", TensorType((4, 6), "float32"))
    y = call("reshape", call("softmax", x, axis=-1), shape=(6, 4))
    main = fused([x], call("softmax", y, axis=-1))
    plan = check(main)
    assert len(plan.calls) == 2
    assert plan.arena_bytes == 128


def test_a_result_that_is_an_input_is_copied() -> None:
    x = Var("x", TensorType((4,), "float32"))
    main = Function((x,), call("reshape", x, shape=(2, 2)))
    plan = check(main)
    assert [(p.store, i) for p, i in plan.copies] == [(Store.INPUT, 0)]


def test_offsets_of_values_alive_together_do_not_overlap() -> None:
    main = chain(5)
    plan = plan_memory(main)
    places = [p for p in plan.places.values() if p.store is Store.ARENA]
    assert len({p.at for p in places}) == 2
    for a, b in itertools.pairwise(places):
        assert a.at != b.at


def test_tuple_items_have_their_own_places() -> None:
    x = Var("x", TensorType((4,), "float32"))
    pair = Tuple((call("softmax", x, axis=0), x))
    main = fused([x], call("softmax", TupleGetItem(pair, 0), axis=0))
    assert len(check(main).calls) == 2

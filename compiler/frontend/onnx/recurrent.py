"""Converters of RNN, GRU and LSTM: their steps written out.

What the inputs add to the gates is one product over all steps. A step is then the product of the
state before it and the recurrent weights, the gates and the new state; all steps have the same
kernels. A sequence shorter than the others keeps its last state, and its further results are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tunefarm.compiler.frontend.onnx import math
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    concat,
    constant,
    dtype_of,
    like,
    reshape,
    shape_of,
    take_range,
    transpose,
)
from tunefarm.compiler.ir import Expr

Activation: TypeAlias = Callable[[Expr], Expr]
State: TypeAlias = tuple[Expr, ...]
Step: TypeAlias = Callable[[Expr, State], State]
"""The state after a step, of what the inputs add to its gates [batch, gates · hidden] and the
state before it; the first tensor of a state, [batch, hidden], is the step's result."""

_SCALED = ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu")
_SHIFTED = ("Affine", "HardSigmoid", "ScaledTanh")
_PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one direction: ``recurrent`` [gates · hidden, hidden], their ``bias`` [gates · hidden] and
    an LSTM's ``peepholes`` [3 · hidden]; None if there are none."""

    recurrent: Expr
    bias: Expr | None
    peepholes: Expr | None

    @property
    def hidden(self) -> int:
        return shape_of(self.recurrent)[1]

    def gates(self, first: int, count: int) -> Expr:
        return take_range(self.recurrent, 0, first * self.hidden, (first + count) * self.hidden)

    def peephole(self, gate: int) -> Expr | None:
        if self.peepholes is None:
            return None
        return take_range(self.peepholes, 0, gate * self.hidden, (gate + 1) * self.hidden)


@dataclass(frozen=True, slots=True)
class Cell:
    """How many gates and tensors of state a cell has, its activations if none are named, and what
    makes its step. ``inner_bias`` tells that the step adds the recurrent bias itself."""

    gates: int
    states: int
    activations: tuple[str, ...]
    step_of: Callable[[Node, Sequence[Activation], Weights], Step]
    inner_bias: Callable[[Node], bool] = lambda node: False


def _rnn(node: Node, activations: Sequence[Activation], weights: Weights) -> Step:
    (f,) = activations

    def step(inputs: Expr, state: State) -> State:
        return (f(node.emit("add", inputs, _product(node, state[0], weights.recurrent))),)

    return step


def _resets_product(node: Node) -> bool:
    return bool(node.attr("linear_before_reset", 0))


def _gru(node: Node, activations: Sequence[Activation], weights: Weights) -> Step:
    """Gates z, r, h."""
    f, g = activations
    update_reset, candidate = weights.gates(0, 2), weights.gates(2, 1)

    def step(inputs: Expr, state: State) -> State:
        (h,), size = state, weights.hidden
        if _resets_product(node):
            product = _product(node, h, weights.recurrent)
            product = product if weights.bias is None else node.emit("add", product, weights.bias)
            z, r = _split(f(_first(node, inputs, product, 2 * size)), 2)
            reset = node.emit("multiply", r, take_range(product, 1, 2 * size, 3 * size))
        else:
            z, r = _split(f(_first(node, inputs, _product(node, h, update_reset), 2 * size)), 2)
            reset = _product(node, node.emit("multiply", r, h), candidate)
        new = g(node.emit("add", take_range(inputs, 1, 2 * size, 3 * size), reset))
        kept = node.emit("multiply", z, node.emit("subtract", h, new))
        return (node.emit("add", new, kept),)

    return step


def _lstm(node: Node, activations: Sequence[Activation], weights: Weights) -> Step:
    """Gates i, o, f, c; peepholes i, o, f."""
    f, g, h = activations
    peepholes = [weights.peephole(gate) for gate in range(3)]
    coupled = bool(node.attr("input_forget", 0))

    def looking(gate: Expr, cell: Expr, peephole: Expr | None) -> Expr:
        if peephole is None:
            return gate
        return node.emit("add", gate, node.emit("multiply", peephole, cell))

    def step(inputs: Expr, state: State) -> State:
        before, cell = state
        gates = node.emit("add", inputs, _product(node, before, weights.recurrent))
        i, o, forget, c = _split(gates, 4)
        i = f(looking(i, cell, peepholes[0]))
        if coupled:
            forget = node.emit("subtract", like(1, i), i)
        else:
            forget = f(looking(forget, cell, peepholes[2]))
        cell = node.emit("add", node.emit("multiply", forget, cell), node.emit("multiply", i, g(c)))
        o = f(looking(o, cell, peepholes[1]))
        return node.emit("multiply", o, h(cell)), cell

    return step


def _product(node: Node, state: Expr, weights: Expr) -> Expr:
    return node.emit("matmul", state, weights, transpose_b=True)


def _first(node: Node, inputs: Expr, product: Expr, size: int) -> Expr:
    """The sum of the first ``size`` columns."""
    return node.emit("add", take_range(inputs, 1, 0, size), take_range(product, 1, 0, size))


def _split(x: Expr, count: int) -> list[Expr]:
    """Equal parts of the columns."""
    size = shape_of(x)[1] // count
    return [take_range(x, 1, n * size, (n + 1) * size) for n in range(count)]


def _recurrent(node: Node, cell: Cell) -> Sequence[Expr | None]:
    """Y [steps, directions, batch, hidden], then the tensors of the last state [directions, batch,
    hidden]; the batch comes first if ``layout`` is 1."""
    _check_shapes(node, cell)
    batch_first = bool(node.attr("layout", 0))
    x = transpose(node.x, (1, 0, 2)) if batch_first else node.x
    steps, batch, _ = shape_of(x)
    directions, _, hidden = shape_of(node.input(2))
    named = node.attr("direction", "forward")
    order = {"forward": (1,), "reverse": (-1,), "bidirectional": (1, -1)}.get(named, ())
    if len(order) != directions:
        raise Unsupported(f"direction {named!r} with weights of {directions} directions")
    activations = _activations(node, cell, directions)
    runs = [_run(node, cell, activations[d], x, d, step) for d, step in enumerate(order)]
    y = None
    if node.wants(0):
        parts = [reshape(concat(results, 0), (steps, 1, batch, hidden)) for results, _ in runs]
        y = concat(parts, 1, node.name)
        y = transpose(y, (2, 0, 1, 3)) if batch_first else y
    last = [
        concat([reshape(state[n], (1, batch, hidden)) for _, state in runs], 0)
        for n in range(cell.states)
    ]
    return y, *(transpose(s, (1, 0, 2)) if batch_first else s for s in last)


_OPERANDS = ((1, 3), (2, 3), (3, 2), (4, 1), (5, 3), (6, 3), (7, 2))
"""Inputs behind the data, and their numbers of dimensions."""


def _check_shapes(node: Node, cell: Cell) -> None:
    """Weights and biases of all gates and directions, lengths and states of all sequences."""
    given = {i: shape_of(node.ranked(i, rank)) for i, rank in _OPERANDS if node.has(i)}
    batch, steps, inputs = shape_of(node.ranked(0, 3))
    if not node.attr("layout", 0):
        steps, batch = batch, steps
    if steps == 0:
        raise Unsupported(f"no steps in data of shape {shape_of(node.x)}")
    directions, _, hidden = shape_of(node.input(2))
    rows, state = cell.gates * hidden, (directions, batch, hidden)
    if node.attr("layout", 0):
        state = batch, directions, hidden
    expected = {
        1: (directions, rows, inputs), 2: (directions, rows, hidden), 3: (directions, 2 * rows),
        4: (batch,), 5: state, 6: state, 7: (directions, 3 * hidden),
    }  # fmt: skip
    for i, shape in given.items():
        if shape != expected[i]:
            raise Unsupported(f"input {i} has shape {shape}, and must have {expected[i]}")


def _run(
    node: Node, cell: Cell, activations: Sequence[Activation], x: Expr, direction: int, order: int
) -> tuple[list[Expr], State]:
    """Results [batch, hidden] of all steps, first step first, and the last state of a direction
    that visits the steps forward (``order`` 1) or backward (−1)."""
    steps, batch, inputs = shape_of(x)

    def own(index: int) -> Expr | None:
        return _row(node.input(index), direction) if node.has(index) else None

    w, r = _row(node.input(1), direction), _row(node.input(2), direction)
    rows, hidden = shape_of(r)
    part = node.emit("matmul", reshape(x, (steps * batch, inputs)), w, transpose_b=True)
    biases, inner = own(3), None
    if biases is not None:
        outer, inner = (take_range(biases, 0, n * rows, (n + 1) * rows) for n in range(2))
        if not cell.inner_bias(node):
            outer, inner = node.emit("add", outer, inner), None
        part = node.emit("add", part, outer)
    step = cell.step_of(node, activations, Weights(r, inner, own(7)))
    state = tuple(_initial(node, 5 + n, direction, batch, hidden) for n in range(cell.states))
    ends = _ends(node, batch)
    results: list[Expr] = []
    for t in range(steps)[::order]:
        new = step(take_range(part, 0, t * batch, (t + 1) * batch), state)
        result = new[0]
        if ends is not None:
            runs = node.emit("greater", ends, like(t, ends))
            result = node.emit("where", runs, result, like(0, result))
            new = tuple(node.emit("where", runs, a, b) for a, b in zip(new, state, strict=True))
        results.append(result)
        state = new
    return results[::order], state


def _row(x: Expr, index: int) -> Expr:
    """x[index]."""
    return reshape(take_range(x, 0, index, index + 1), shape_of(x)[1:])


def _initial(node: Node, index: int, direction: int, batch: int, hidden: int) -> Expr:
    """A tensor of the state before the first step: an input, or zeros."""
    if not node.has(index):
        return constant([[0.0] * hidden] * batch, dtype_of(node.x))
    given = node.input(index)
    return _row(transpose(given, (1, 0, 2)) if node.attr("layout", 0) else given, direction)


def _ends(node: Node, batch: int) -> Expr | None:
    """The lengths of the sequences [batch, 1]; None if all are as long."""
    return reshape(node.input(4), (batch, 1)) if node.has(4) else None


def _activations(node: Node, cell: Cell, directions: int) -> list[list[Activation]]:
    """Those of each direction, which take alpha and beta in turn where they have such. The gates'
    inputs are clipped; an LSTM's cell is not, as in onnxruntime."""
    count = len(cell.activations)
    names = [str(n) for n in node.attr("activations") or cell.activations * directions]
    if len(names) != count * directions:
        raise Unsupported(f"activations {names}: {count} for each of {directions} directions")
    alphas, betas = (iter(node.attr(f"activation_{n}") or ()) for n in ("alpha", "beta"))
    made = [_activation(node, name, alphas, betas) for name in names]
    made = [_clipped(node, a) if n % count < 2 else a for n, a in enumerate(made)]
    return [made[d * count : (d + 1) * count] for d in range(directions)]


def _clipped(node: Node, activation: Activation) -> Activation:
    bound = node.attr("clip")
    if bound is None:
        return activation
    return lambda x: activation(node.emit("clip", x, min=-bound, max=bound))


def _activation(
    node: Node, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    if name not in (*_PLAIN, *_SCALED):
        raise Unsupported(f"activation {name}")
    taken = (("alpha", alphas, _SCALED), ("beta", betas, _SHIFTED))
    given = {n: next(values, None) for n, values, takers in taken if name in takers}
    factors = {n: value for n, value in given.items() if value is not None}

    def apply(x: Expr) -> Expr:
        alpha, beta = factors.get("alpha", 1.0), factors.get("beta")
        if name == "Affine":
            scaled = node.emit("multiply", x, like(alpha, x))
            return node.emit("add", scaled, like(beta or 0.0, x))
        if name == "ScaledTanh":
            x = node.emit("multiply", x, like(1.0 if beta is None else beta, x))
            return node.emit("multiply", node.emit("tanh", x), like(alpha, x))
        made = math.CONVERTERS[name](replace(node, op=name, inputs=(x,), attrs=factors))
        assert isinstance(made, Expr)
        return made

    return apply


_CELLS = {
    "RNN": Cell(1, 1, ("Tanh",), _rnn),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru, _resets_product),
    "LSTM": Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
}


def _converter(cell: Cell) -> Converter:
    return lambda node: _recurrent(node, cell)


CONVERTERS: dict[str, Converter] = {name: _converter(cell) for name, cell in _CELLS.items()}

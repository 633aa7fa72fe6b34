"""Rules that move transposes towards the results until they meet their inverse and vanish.

relu(T(x))            ->  T(relu(x))
add(T(x), T(y))       ->  T(add(x, y))
add(T(x), c)          ->  T(add(x, T⁻(c)))          c constant or much smaller
concat(T(x), T(y))    ->  T(concat(x, y))           the axis renamed; so for reductions, slice, …
T2(T1(x))             ->  T(x), or x
reshape(T(x))         ->  T'(reshape(x))            if it splits or merges axes that stay together
broadcast_to(T(x))    ->  T(broadcast_to'(x))
matmul(T(x), y)       ->  matmul[transpose_a](x, y) if T swaps the last two axes
T⁻(add(T(x), y))      ->  add(x, T⁻(y))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.compiler.ir import (
    Attrs,
    AttrValue,
    Call,
    Constant,
    Expr,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import OPS, Pattern, call
from tunefarm.compiler.ops.shape import reshape_groups
from tunefarm.compiler.transform.constants import (
    inverse,
    permutation,
    reshape,
    strip_unit_dims,
    transpose,
)
from tunefarm.compiler.transform.rewrite import Rule, Uses, users_of, with_children

_MUCH_SMALLER = 4
_MUCH_LARGER = 16
_ONE_AXIS = (
    "softmax", "log_softmax", "lrn", "cumsum", "cumprod", "batch_norm", "interpolate", "gather",
)  # fmt: skip
_REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "mean")
_PER_AXIS: dict[str, tuple[str, ...]] = {
    "slice": ("begin", "size", "strides"),
    "pad": ("padding",),
    "tile": ("repeats",),
}


def _moved(expr: Expr) -> tuple[Expr, tuple[int, ...]] | None:
    """(x, axes) where the expression is transpose(x, axes)."""
    if isinstance(expr, Call) and expr.op == "transpose":
        return expr.args[0], permutation(expr)
    return None


def compose(node: Call, uses: Uses) -> Expr | None:
    """transpose(transpose(x))  ->  transpose(x), and the identity disappears."""
    if node.op != "transpose":
        return None
    axes = permutation(node)
    if list(axes) == list(range(len(axes))):
        return node.args[0]
    if isinstance(node.args[0], Constant):
        return transpose(node.args[0], axes)
    return None if _moved(node.args[0]) is None else _turned(node.args[0], axes)


def sink_elementwise(node: Call, uses: Uses) -> Expr | None:
    """f(T(x), …)  ->  T(f(x, …)), where the other operands follow at little cost."""
    if not _is_elementwise(node):
        return None
    rank = len(tensor_type(node).shape)
    size = tensor_type(node).size
    axes = _common_axes(node, rank, size)
    if axes is None:
        return None
    operands = [_follow(a, axes, rank, size) for a in node.args]
    if any(o is None for o in operands):
        return None
    attrs = node.attrs
    inner = call(str(node.op), *(o for o in operands if o is not None), name=node.name, **attrs)
    return transpose(inner, axes)


def _is_elementwise(node: Call) -> bool:
    if not isinstance(node.op, str) or node.op in ("batch_norm", "broadcast_to"):
        return False
    return OPS[node.op].pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST)


def _common_axes(node: Call, rank: int, size: int) -> tuple[int, ...] | None:
    """The axes of the transposes among the large operands, if they agree."""
    found: set[tuple[int, ...]] = set()
    for operand in node.args:
        inner = _moved(operand)
        if inner is not None and len(inner[1]) == rank and tensor_type(operand).size == size:
            found.add(inner[1])
    return found.pop() if len(found) == 1 else None


def _follow(operand: Expr, axes: tuple[int, ...], rank: int, size: int) -> Expr | None:
    """T⁻(operand) for the broadcast operand, or None if it would cost a copy of a large tensor."""
    inner = _moved(operand)
    if inner is not None and inner[1] == axes:
        return inner[0]
    kind = tensor_type(operand)
    if kind.size == 1:
        return operand
    if not isinstance(operand, Constant) and kind.size * _MUCH_SMALLER > size:
        return None
    full = reshape(operand, (*[1] * (rank - len(kind.shape)), *kind.shape))
    turned = transpose(full, inverse(axes))
    return strip_unit_dims(turned) if isinstance(turned, Constant) else turned


def sink_through_axes(node: Call, uses: Uses) -> Expr | None:
    """op[axis](T(x))  ->  T(op[axis'](x)) for operators that name axes and keep the rank."""
    if not node.args:
        return None
    inner = _moved(node.args[0])
    if inner is None or not isinstance(node.op, str):
        return None
    x, axes = inner
    attrs = _renamed(node.op, node.attrs, axes)
    if attrs is None or len(tensor_type(node).shape) != len(axes):
        return None
    made = call(node.op, x, *node.args[1:], name=node.name, **attrs)
    return transpose(made, axes)


def _renamed(op: str, attrs: Attrs, axes: tuple[int, ...]) -> dict[str, AttrValue] | None:
    """The attributes on the operand before the transpose; None if the operator does not commute."""
    if op in _ONE_AXIS or (op in ("argmax", "argmin") and attrs["keepdims"]):
        axis = attrs["axis"]
        assert isinstance(axis, int)
        return {**attrs, "axis": axes[axis]}
    if op in _REDUCTIONS and attrs["keepdims"] and attrs["axes"]:
        return {**attrs, "axes": tuple(sorted(axes[a] for a in _integers(attrs["axes"])))}
    if op in _PER_AXIS:
        back = inverse(axes)
        changed = {name: _permuted(attrs[name], back) for name in _PER_AXIS[op]}
        return {**attrs, **changed}
    return None


def _integers(value: AttrValue) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]


def _permuted(value: AttrValue, back: tuple[int, ...]) -> AttrValue:
    assert isinstance(value, tuple)
    return tuple(value[a] for a in back)


def sink_dropping_reduction(node: Call, uses: Uses) -> Expr | None:
    """sum[axes, keepdims=False](T(x))  ->  T'(sum[axes'](x)), T' over the axes that remain."""
    is_position = node.op in ("argmax", "argmin")
    if (node.op not in _REDUCTIONS and not is_position) or node.attrs["keepdims"]:
        return None
    inner = _moved(node.args[0])
    if inner is None:
        return None
    x, axes = inner
    rank = len(axes)
    if is_position:
        axis = node.attrs["axis"]
        assert isinstance(axis, int)
        removed = {axis % rank}
        attrs: dict[str, AttrValue] = {**node.attrs, "axis": axes[axis]}
    else:
        removed = {a % rank for a in _integers(node.attrs["axes"])}
        attrs = {**node.attrs, "axes": tuple(sorted(axes[a] for a in removed))}
    if not removed:
        return None
    kept = [axes[a] for a in range(rank) if a not in removed]
    order = sorted(kept)
    made = call(str(node.op), x, name=node.name, **attrs)
    return transpose(made, tuple(order.index(a) for a in kept))


def sink_concat(node: Call, uses: Uses) -> Expr | None:
    """concat(T(x), T(y), …)  ->  T(concat(x, y, …)) where most elements are transposed alike."""
    if node.op != "concat":
        return None
    sizes: dict[tuple[int, ...], int] = {}
    for operand in node.args:
        inner = _moved(operand)
        if inner is not None:
            sizes[inner[1]] = sizes.get(inner[1], 0) + tensor_type(operand).size
    axes = max(sizes, key=lambda a: sizes[a], default=None)
    if axes is None or sizes[axes] * 2 <= tensor_type(node).size:
        return None
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    operands = [transpose(a, inverse(axes)) for a in node.args]
    return transpose(call("concat", *operands, axis=axes[axis], name=node.name), axes)


def sink_broadcast(node: Call, uses: Uses) -> Expr | None:
    """broadcast_to(T(x))  ->  T(broadcast_to'(x)): a map is enlarged in the layout it has."""
    if node.op != "broadcast_to":
        return None
    inner = _moved(node.args[0])
    shape, size = tensor_type(node).shape, tensor_type(node).size
    if inner is None or len(inner[1]) != len(shape):
        return None
    if size > _MUCH_LARGER * tensor_type(node.args[0]).size:
        return None  # the transpose may stay, and would be of all that
    x, axes = inner
    before = tuple(shape[a] for a in inverse(axes))
    return transpose(call("broadcast_to", x, shape=before, name=node.name), axes)


def sink_reshape(node: Call, uses: Uses) -> Expr | None:
    """reshape(T(x))  ->  T'(reshape'(x)) if the axes it joins are neighbours in x, in order.

    A new axis of extent 1 stays behind the one that it follows, with which it may grow together.
    """
    if node.op != "reshape":
        return None
    inner = _moved(node.args[0])
    if inner is None:
        return None
    x, axes = inner
    old, new = tensor_type(node.args[0]).shape, tensor_type(node).shape
    if 0 in old:
        return None
    if _moves_only_unit_axes(old, axes):
        return reshape(x, new)
    groups = _unit_axes_apart(old, new)
    sources = [[axes[d] for d in run if old[d] != 1] for run, _ in groups]
    if any(s != list(range(s[0], s[0] + len(s))) for s in _without_units(x, sources) if s):
        return None
    places: list[int] = []
    for source, (run, _) in zip(sources, groups, strict=True):
        first = source[0] if source else axes[run[0]] if len(run) else None
        places.append(first if first is not None else places[-1] if places else -1)
    order = sorted(range(len(groups)), key=lambda g: places[g])
    placed = [d for g in order for d in groups[g][1]]
    return transpose(reshape(x, tuple(new[d] for d in placed)), inverse(placed))


def _unit_axes_apart(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """``reshape_groups``, with axes of extent 1 in front of a run in groups of their own."""
    groups: list[tuple[range, range]] = []
    for before, after in reshape_groups(old, new):
        while len(before) > 1 and len(after) > 1 and old[before[0]] == new[after[0]] == 1:
            groups.append((before[:1], after[:1]))
            before, after = before[1:], after[1:]
        while len(before) and len(after) > 1 and new[after[0]] == 1 and old[before[0]] != 1:
            groups.append((before[:0], after[:1]))
            after = after[1:]
        groups.append((before, after))
    return groups


def _without_units(x: Expr, sources: list[list[int]]) -> list[list[int]]:
    """Axes renumbered as if x had no axes of extent 1."""
    shape = tensor_type(x).shape
    rank = {axis: i for i, axis in enumerate(a for a in range(len(shape)) if shape[a] != 1)}
    return [[rank[a] for a in run] for run in sources]


def _moves_only_unit_axes(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether the transpose with this result leaves the elements' order in memory as it was."""
    moved = [a for a, extent in zip(axes, shape, strict=True) if extent != 1]
    return moved == sorted(moved)


def unit_transpose(node: Call, uses: Uses) -> Expr | None:
    """transpose  ->  reshape, where only axes of extent 1 move."""
    if node.op != "transpose":
        return None
    shape = tensor_type(node).shape
    if not _moves_only_unit_axes(shape, permutation(node)):
        return None
    return reshape(node.args[0], shape)


def absorb_into_matmul(node: Call, uses: Uses) -> Expr | None:
    """matmul(T(x), y)  ->  matmul[transpose_a](T'(x), y), T' without the swap of the last two."""
    if node.op != "matmul":
        return None
    operands, attrs = list(node.args), dict(node.attrs)
    for side, flag in enumerate(("transpose_a", "transpose_b")):
        inner = _moved(operands[side])
        if inner is not None and inner[1][-2] == len(inner[1]) - 1:
            x, axes = inner
            operands[side] = transpose(x, (*axes[:-2], axes[-1], axes[-2]))
            attrs[flag] = not attrs[flag]
    if operands == list(node.args):
        return None
    return call("matmul", *operands, name=node.name, **attrs)


def lift_through_elementwise(node: Call, uses: Uses) -> Expr | None:
    """T⁻(f(T(x), y))  ->  f(x, T⁻(y)): a pair vanishes; y's transpose is often there already.

    T⁻(f(x, y)), both much smaller than the result  ->  f(T⁻(x), T⁻(y)).
    """
    outer = _moved(node)
    if outer is None or not isinstance(outer[0], Call) or not _is_elementwise(outer[0]):
        return None
    inner, axes = outer
    assert isinstance(inner, Call)
    if uses.get(inner, 1) > 1 or len(inner.args) < 2:
        return None
    size = tensor_type(inner).size
    undone = [_moved(a) for a in inner.args if tensor_type(a).size == size]
    small = all(tensor_type(a).size * _MUCH_SMALLER <= size for a in inner.args)
    if not small and not any(u is not None and u[1] == inverse(axes) for u in undone):
        return None
    operands = [_aligned(operand, len(axes), axes) for operand in inner.args]
    return call(str(inner.op), *operands, name=inner.name, **inner.attrs)


def turn_streams(root: Expr) -> Expr:
    """f(T(x), y), which T⁻ and others read  ->  T(f(x, T⁻(y))), y as large as x.

    Where a stream of residuals begins in another layout than the convolutions that it passes, one
    turn at its beginning takes the place of two at each. ``root`` itself if there is none.
    """
    users = users_of(root)
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        axes = _turned_by(node, users) if isinstance(node, Call) else None
        made = with_children(node, [done[c] for c in children(node)])
        if axes is not None and isinstance(made, Call):
            operands = [_aligned(a, len(axes), inverse(axes)) for a in made.args]
            inner = call(str(made.op), *operands, name=made.name, **made.attrs)
            made = transpose(inner, axes)
        elif (outer := _moved(made)) is not None and made is not node:
            made = _turned(*outer)
        done[node] = made
    return done[root]


def _turned(expr: Expr, axes: Sequence[int]) -> Expr:
    """The expression transposed; two transposes are one, or none."""
    inner = _moved(expr)
    if inner is None:
        return transpose(expr, axes)
    x, first = inner
    return transpose(x, tuple(first[a] for a in axes))


def _turned_by(node: Call, users: Mapping[Expr, Sequence[Expr]]) -> tuple[int, ...] | None:
    """T of f(T(x), y), if T⁻ reads that as often as what keeps its layout, and others do, too."""
    if not _is_elementwise(node) or len(node.args) < 2 or len(users[node]) < 2:
        return None
    size = tensor_type(node).size
    axes = _common_axes(node, len(tensor_type(node).shape), size)
    large = [a for a in node.args if tensor_type(a).size == size and _moved(a) is None]
    if axes is None or len(large) > 1:
        return None
    undone = [u for u in users[node] if (m := _moved(u)) is not None and m[1] == inverse(axes)]
    others = [u for u in users[node] if not isinstance(u, Call) or not _is_elementwise(u)]
    kept = len(others) - len(undone)
    return axes if 0 < len(undone) >= kept else None


def _aligned(operand: Expr, rank: int, axes: Sequence[int]) -> Expr:
    """A broadcast operand of a turned operator."""
    kind = tensor_type(operand)
    if kind.size == 1:
        return operand
    return _turned(reshape(operand, (*[1] * (rank - len(kind.shape)), *kind.shape)), axes)


def lift_through_reshape(node: Call, uses: Uses) -> Expr | None:
    """T2(reshape(T1(x)))  ->  reshape(T(x)): the shuffle of channels in groups is one transpose."""
    outer = _moved(node)
    if outer is None or not isinstance(outer[0], Call) or outer[0].op != "reshape":
        return None
    view, axes = outer
    assert isinstance(view, Call)
    inner = view.args[0]
    if _moved(inner) is None or uses.get(view, 1) > 1:
        return None
    old, new = tensor_type(inner).shape, tensor_type(view).shape
    if 0 in old:
        return None
    position = inverse(axes)
    groups = _unit_axes_apart(old, new)
    for _, run in groups:
        places = [position[d] for d in run]
        if places and places != list(range(places[0], places[0] + len(places))):
            return None
    ordered = sorted(groups, key=lambda g: position[g[1][0]] if len(g[1]) else -1)
    turned = transpose(inner, [d for run, _ in ordered for d in run])
    return reshape(turned, tensor_type(node).shape)


TRANSPOSE_RULES: tuple[Rule, ...] = (
    compose,
    sink_elementwise,
    sink_through_axes,
    sink_dropping_reduction,
    sink_concat,
    sink_broadcast,
    sink_reshape,
    absorb_into_matmul,
    lift_through_elementwise,
    lift_through_reshape,
)

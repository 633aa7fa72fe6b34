"""Rules by which products read transposed operands, and write transposed results, in place.

matmul(T(q), T(k))                ->  einsum("bqhd,bkhd->bhqk", q, k)
matmul(reshape(T(q)), …)          ->  reshape(einsum(q, …))     where the reshape joins or cuts axes
T(matmul(p, v))                   ->  einsum("bhqk,bhkd->bqhd", p, v)

A transpose stays where the innermost axis in memory would become one that both operands and the
result share, or where the result's lanes would lie apart. ``lower_einsum`` makes a matmul again of
what needs no einsum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops.shape import reshape_groups
from tunefarm.compiler.transform.constants import permutation, reshape
from tunefarm.compiler.transform.lower_einsum import einsum, terms_of
from tunefarm.compiler.transform.rewrite import Rule, Uses, is_call

_Labels = tuple[int, ...]
_LANES, _ROWS = 16, 4


@dataclass(frozen=True, slots=True)
class _Product:
    """Two operands, the labels of their axes, those of the result, and each label's extent."""

    operands: tuple[Expr, Expr]
    terms: tuple[_Labels, _Labels]
    result: _Labels
    extents: dict[int, int]

    def shape(self, labels: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.extents[c] for c in labels)

    def emit(self) -> Expr:
        """The einsum; operands are viewed in the shapes that their labels have."""
        letters = {label: chr(ord("A") + i) for i, label in enumerate(self.extents)}
        words = ["".join(letters[c] for c in term) for term in (*self.terms, self.result)]
        pairs = zip(self.operands, self.terms, strict=True)
        return einsum([_view(o, self.shape(t)) for o, t in pairs], words[:2], words[2])

    def split(self, pieces: dict[int, tuple[int, ...]]) -> tuple[_Product, dict[int, _Labels]]:
        """Labels replaced by several, of the given extents; and which by which."""
        extents, fresh = dict(self.extents), {}
        for label, parts in pieces.items():
            first = max(extents) + 1
            fresh[label] = tuple(range(first, first + len(parts)))
            extents.update(zip(fresh[label], parts, strict=True))

        def cut(term: _Labels) -> _Labels:
            return tuple(part for c in term for part in fresh.get(c, (c,)))

        used = {label: e for label, e in extents.items() if label not in pieces}
        terms = cut(self.terms[0]), cut(self.terms[1])
        return _Product(self.operands, terms, cut(self.result), used), fresh


def read_in_place(node: Call, uses: Uses) -> Expr | None:
    """A product of transposed operands reads what the transposes read."""
    product = _product(node)
    if product is None:
        return None
    folded = product
    for side in range(2):
        folded = _fold(folded, side) or folded
    return None if folded is product else reshape(folded.emit(), tensor_type(node).shape)


def write_in_place(node: Call, uses: Uses) -> Expr | None:
    """T(product) and T(reshape(product))  ->  the product with its result's axes in T's order."""
    if node.op != "transpose":
        return None
    inner, axes = node.args[0], permutation(node)
    if axes[-1] != len(axes) - 1 or uses.get(inner, 1) > 1:
        return None
    shape = tensor_type(inner).shape
    if is_call(inner, "reshape") and isinstance(inner, Call):
        inner = inner.args[0]
    product = _product(inner) if uses.get(inner, 1) == 1 else None
    if product is None:
        return None
    labels = [c for c in product.result if product.extents[c] > 1]
    places = [d for d, e in enumerate(shape) if e > 1]
    cuts: dict[int, _Labels] = {}
    for before, after in reshape_groups(product.shape(labels), tuple(shape[d] for d in places)):
        if len(before) != 1:
            return None
        cuts[labels[before[0]]] = tuple(shape[places[d]] for d in after)
    if not all(_is_tileable(product, c, parts) for c, parts in cuts.items()):
        return None
    cut, fresh = product.split(cuts)
    parts = [part for c in labels for part in fresh[c]]
    at = dict(zip(places, parts, strict=True))
    units = tuple(c for c in product.result if product.extents[c] == 1)
    result = (*units, *(at[a] for a in axes if a in at))
    made = _Product(cut.operands, cut.terms, result, cut.extents)
    return reshape(made.emit(), tensor_type(node).shape)


def _product(node: Expr) -> _Product | None:
    """A matmul or einsum of two operands with labels; axes that broadcast have none."""
    if not isinstance(node, Call) or not tensor_type(node).size or len(node.args) != 2:
        return None
    if node.op == "matmul":
        return None if node.attrs["out_dtype"] else _labelled_matmul(node)
    if node.op != "einsum" or node.attrs["out_dtype"]:
        return None
    (first, second), result = terms_of(node)
    extents: dict[int, int] = {}
    for term, operand in zip((first, second), node.args, strict=True):
        if len(set(term)) < len(term):
            return None
        extents.update(zip(map(ord, term), tensor_type(operand).shape, strict=True))
    terms = tuple(map(ord, first)), tuple(map(ord, second))
    return _Product((node.args[0], node.args[1]), terms, tuple(map(ord, result)), extents)


def _labelled_matmul(node: Call) -> _Product | None:
    shape = tensor_type(node).shape
    rank = len(shape)
    m, n, k = rank - 2, rank - 1, rank
    inner = tensor_type(node.args[0]).shape[-2 if node.attrs["transpose_a"] else -1]
    terms = []
    for operand, matrix, flag in zip(
        node.args, ((m, k), (k, n)), ("transpose_a", "transpose_b"), strict=True
    ):
        extents = tensor_type(operand).shape[:-2]
        batch = range(rank - 2 - len(extents), rank - 2)
        kept = (c for c, e in zip(batch, extents, strict=True) if e == shape[c])
        terms.append((*kept, *(matrix[::-1] if node.attrs[flag] else matrix)))
    extents_of = {**dict(enumerate(shape)), k: inner}
    if not inner:
        return None
    operands = node.args[0], node.args[1]
    return _Product(operands, (terms[0], terms[1]), tuple(range(rank)), extents_of)


def _fold(product: _Product, side: int) -> _Product | None:
    """The product on what lies below the operand's transpose; None where it must stay."""
    moved = product.operands[side]
    if is_call(moved, "reshape") and isinstance(moved, Call):
        moved = moved.args[0]
    if not isinstance(moved, Call) or moved.op != "transpose":
        return None
    source, axes = moved.args[0], permutation(moved)
    extents = tensor_type(source).shape
    labels = [c for c in product.terms[side] if product.extents[c] > 1]
    places = [a for a in axes if extents[a] > 1]
    if not labels or isinstance(source, Constant):
        return None
    groups = [
        ([places[i] for i in before], [labels[i] for i in after])
        for before, after in reshape_groups(
            tuple(extents[a] for a in places), product.shape(labels)
        )
    ]
    if not _stays_contiguous(product, groups):
        return None
    joined = {c[-1]: tuple(extents[a] for a in at) for at, c in groups if len(at) > 1}
    if not all(_is_tileable(product, c, parts) for c, parts in joined.items()):
        return None
    cut, fresh = product.split(joined)
    pieces: dict[int, Sequence[int]] = {}
    for at, here in groups:
        pieces.update(
            {at[0]: here}
            if len(at) == 1
            else dict(zip(at, ((c,) for c in fresh[here[0]]), strict=True))
        )
    units = tuple(c for c in product.terms[side] if product.extents[c] == 1)
    term = (*units, *(c for a in sorted(pieces) for c in pieces[a]))
    other = cut.operands[1 - side], cut.terms[1 - side]
    (a, first), (b, second) = ((source, term), other)[:: 1 - 2 * side]
    return _Product((a, b), (first, second), cut.result, cut.extents)


def _stays_contiguous(
    product: _Product, groups: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> bool:
    """Whether axes map to labels one to one, to many or many to one, and the innermost is unshared.

    A group holds axes of the transpose's operand and the labels that they are read by.
    """
    if any(len(at) > 1 and len(labels) > 1 for at, labels in groups):
        return False
    shared = set(product.terms[0]) & set(product.terms[1]) & set(product.result)
    _, innermost = max(groups, key=lambda group: max(group[0]))
    return innermost[-1] not in shared


def _is_tileable(product: _Product, label: int, parts: _Labels) -> bool:
    """Whether the innermost of the axes that replace one leaves a register tile its lanes, rows."""
    first, second = (label in term for term in product.terms)
    if len(parts) == 1 or (first and second):
        return True
    return parts[-1] >= (_LANES if label == product.result[-1] else _ROWS)


def _view(expr: Expr, shape: tuple[int, ...]) -> Expr:
    """The expression in another shape, reshaped at most once."""
    while is_call(expr, "reshape") and isinstance(expr, Call) and tensor_type(expr).shape != shape:
        expr = expr.args[0]
    return reshape(expr, shape)


IN_PLACE_RULES: tuple[Rule, ...] = (read_in_place, write_in_place)

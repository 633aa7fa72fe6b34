"""Steps of operators that are matrix products: MatMul, Gemm, Einsum, recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_models.draft import Draft, Unsuitable


def dense(draft: Draft, x: str, columns: int) -> str:
    """The product with constant weights, of as many columns."""
    k = draft.shape(x)[-1]
    return draft.node("MatMul", x, draft.weights(k, columns, fan=k))


def matmul(draft: Draft) -> str:
    """A product with constants, a batch of them, or the tensor's own transpose."""
    x = draft.pick(least=2)
    *batch, _, k = draft.shape(x)
    n = draft.any(1, 2, 7, 16, 17, 31, 64, 100)
    if draft.chance(0.6):
        y = dense(draft, x, n)
        return draft.node("Add", y, draft.weights(n, fan=4)) if draft.chance(0.5) else y
    if draft.chance(0.5):
        batch = [extent if draft.chance(0.7) else 1 for extent in batch]
        return draft.node("MatMul", x, draft.weights(*batch, k, n, fan=k))
    rank = len(batch) + 2
    turned = draft.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    return draft.node("Mul", draft.node("MatMul", x, turned), draft.number(1 / k))


def gemm(draft: Draft) -> str:
    x = draft.pick()
    if len(draft.shape(x)) != 2:
        x = draft.node("Flatten", x, axis=draft.between(0, len(draft.shape(x))))
    turned, weights_turned = draft.chance(0.5), draft.chance(0.5)
    m, k = draft.shape(x)[::-1] if turned else draft.shape(x)
    n = draft.any(1, 5, 10, 32, 33, 100)
    operands = [x, draft.weights(*((n, k) if weights_turned else (k, n)), fan=k)]
    if draft.chance(0.6):
        shape = draft.any((n,), (1, n), (m, 1), (1,), (m, n))
        operands.append(draft.constant(draft.normal(*shape)))
    attrs: dict[str, Any] = {"alpha": 0.5, "beta": 1.5} if draft.chance(0.3) else {}
    return draft.node("Gemm", *operands, transA=int(turned), transB=int(weights_turned), **attrs)


def einsum(draft: Draft) -> str:
    x = draft.pick(rank=draft.any(3, 4))
    shape = draft.shape(x)
    if len(shape) == 3:
        b, t, c = shape
        equation, extents = draft.any(
            ("btc,ck->btk", (c, 5)),
            ("btc,kc->bkt", (6, c)),
            ("btc,tk->bck", (t, 4)),
            ("btc,bkc->btk", (b, 3, c)),
        )
    else:
        _, c, h, w = shape
        equation, extents = draft.any(
            ("bchw,ck->bkhw", (c, 5)),
            ("bchw,wk->bchk", (w, 6)),
            ("bchw,kch->bkw", (4, c, h)),
        )
    weights = draft.weights(*extents, fan=int(np.prod(shape[1:])) // 2 + 1)
    return draft.node("Einsum", x, weights, equation=equation)


def recurrent(draft: Draft) -> str:
    """A layer of LSTM, GRU or RNN, its directions side by side in the result."""
    x = draft.pick(rank=3)
    steps, batch, c = draft.shape(x)
    if steps > 40:
        raise Unsuitable("as many steps take too long")
    kind, gates = draft.any(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    ways = draft.any(1, 1, 2)
    h = draft.any(1, 8, 17, 32)
    operands = [x, draft.weights(ways, gates * h, c, fan=c)]
    operands.append(draft.weights(ways, gates * h, h, fan=h))
    if draft.chance(0.6):
        operands.append(draft.weights(ways, 2 * gates * h, fan=4))
    attrs: dict[str, Any] = {"hidden_size": h}
    attrs["direction"] = "bidirectional" if ways == 2 else draft.any("forward", "reverse")
    if kind == "GRU" and draft.chance(0.5):
        attrs["linear_before_reset"] = 1
    y = draft.node("Transpose", draft.node(kind, *operands, **attrs), perm=[0, 2, 1, 3])
    return draft.node("Reshape", y, draft.ints(steps, batch, -1))

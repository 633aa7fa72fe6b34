"""Attention, MultiHeadAttention, GroupQueryAttention and RotaryEmbedding of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.frontend.onnx import from_onnx
from tunefarm.compiler.ir import Call, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize

import tunefarm
from tests.compiler.frontend.beside_onnxruntime import (
    RNG,
    Array,
    assert_alike,
    by_onnxruntime,
    ints,
    model_of,
    normal,
)

B, S, D, N, PAST = 2, 5, 12, 3, 4
EACH_ROW, EACH_SCORE = ints([1, 1, 1, 0, 0], [0, 1, 1, 1, 1]), (B, N, S, S)
MASKS: dict[str, Array | None] = {
    "none": None,
    "ends": ints(3, 5),
    "ends and starts": ints(3, 5, 1, 2),
    "rows": EACH_ROW,
    "scores": RNG.integers(0, 2, (B, S, S)).astype(np.int32),
}


def projections(width: int = 3 * D) -> list[Array | None]:
    return [normal(B, S, D), 0.3 * normal(D, width), normal(width)]


def kept(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.int32)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_of_one_projection(mask: str, unidirectional: int) -> None:
    inputs = [*projections(), MASKS[mask]]
    attrs = {"num_heads": N, "unidirectional": unidirectional, "scale": 0.3 * unidirectional}
    assert_alike(*model_of("Attention", inputs, (1, 2), **attrs))


@pytest.mark.parametrize("value", [-10000.0, -3.4028e38, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("past", [False, True])
def test_masks_of_padding_and_of_later_tokens_meet(value: float, past: bool) -> None:
    """The first tokens of a row that is padded on the left have nothing to attend to."""
    mask = ints([0, 0, 1, 1, 1], [1, 1, 1, 1, 1])
    inputs: list[Array | None] = [*projections(), mask]
    if past:
        inputs[3:] = np.pad(mask, ((0, 0), (PAST, 0))), normal(2, B, N, PAST, D // N)
    attrs = {"num_heads": N, "unidirectional": 1, "mask_filter_value": value}
    assert_alike(*model_of("Attention", inputs, (1, 2), (0, 1) if past else (0,), **attrs))


@pytest.mark.parametrize("value", [-65504.0, -3.4028e38])
def test_masked_scores_of_half_precision_are_finite(value: float) -> None:
    large = [3 * normal(B, S, D), normal(D, 3 * D), normal(3 * D)]
    inputs = [*(x.astype(np.float16) for x in large), ints([0, 0, 1, 1, 1], [0, 0, 0, 0, 0])]
    attrs = {"num_heads": N, "unidirectional": 1, "mask_filter_value": value}
    model, feeds = model_of("Attention", inputs, (1, 2), **attrs)
    (y,) = tunefarm.build(from_onnx(model), Target.host(1)).run(feeds).values()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("bias", [(1, N, S, S), (B, 1, S, S)])
def test_attention_with_a_bias_of_scores(bias: tuple[int, ...]) -> None:
    inputs = [*projections(), EACH_ROW, None, normal(*bias)]
    attrs = {"num_heads": N, "mask_filter_value": -3.4e38}
    assert_alike(*model_of("Attention", inputs, (1, 2), **attrs))


def test_attention_with_values_of_another_width_and_no_bias() -> None:
    inputs = projections(36)[:2]
    assert_alike(*model_of("Attention", inputs, (1,), num_heads=N, qkv_hidden_sizes=[9, 9, 18]))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_a_past(masked: bool) -> None:
    mask = kept(B, S + PAST) if masked else None
    inputs = [*projections(), mask, normal(2, B, N, PAST, D // N)]
    attrs = {"num_heads": N, "unidirectional": 1}
    assert_alike(*model_of("Attention", inputs, (1, 2), (0, 1), **attrs))


@pytest.mark.parametrize(
    "rest, attrs",
    [
        ([], {}),
        ([normal(2 * D + 18)], {"scale": 0.2}),
        ([normal(2 * D + 18), ints(3, 7)], {}),
        ([None, kept(B, 7)], {}),
        ([None, kept(B, S, 7)], {}),
        ([None, None, normal(B, N, S, 7)], {}),
        ([normal(2 * D + 18), kept(B, 7), normal(1, 1, S, 7)], {"mask_filter_value": -1e6}),
    ],
)
def test_attention_to_other_tokens(rest: list[Array | None], attrs: dict[str, Any]) -> None:
    inputs = [normal(B, S, D), normal(B, 7, D), normal(B, 7, 18), *rest]
    assert_alike(*model_of("MultiHeadAttention", inputs, num_heads=N, **attrs))


@pytest.mark.parametrize("bias", [[], [normal(3 * D)]])
def test_attention_to_heads_apart(bias: list[Array]) -> None:
    inputs = [normal(B, S, D), normal(B, N, 7, D // N), normal(B, N, 7, D // N), *bias]
    assert_alike(*model_of("MultiHeadAttention", inputs, num_heads=N))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_a_past_and_to_earlier_tokens(masked: bool) -> None:
    """A query that sees masked keys alone has scores of -10,000, where floats are 0.001 apart: the
    first key stays."""
    mask = np.maximum(kept(B, S + PAST), ints(1, *[0] * (S + PAST - 1)))
    rest = [normal(3 * D), mask, normal(B, N, S, S + PAST)] if masked else [None] * 3
    past = [normal(B, N, PAST, D // N) for _ in range(2)]
    inputs = [*(normal(B, S, D) for _ in range(3)), *rest, *past]
    attrs = {"num_heads": N, "unidirectional": 1}
    assert_alike(*model_of("MultiHeadAttention", inputs, outputs=(0, 1, 2), **attrs))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("known", [(), (1, 2, 3)])
@pytest.mark.parametrize("pairs", [4, 2])
@pytest.mark.parametrize("places", [RNG.integers(0, 20, (B, S)), np.array([3]), np.array(3)])
def test_rotary_embedding(
    interleaved: int, known: tuple[int, ...], pairs: int, places: Array
) -> None:
    """Of heads joined and apart, all of which turn or half."""
    some = {"num_heads": N, "rotary_embedding_dim": 2 * pairs} if pairs < 4 else {}
    for x in (normal(B, S, N * 8), normal(B, N, S, 8)):
        inputs = [x, places, normal(20, pairs), normal(20, pairs)]
        assert_alike(*model_of("RotaryEmbedding", inputs, known, interleaved=interleaved, **some))


QUERIES, KEYS, SIZE = 4, 2, 16  # heads of GroupQueryAttention, and their numbers


def grouped(
    tokens: int,
    past: int = 0,
    total: int | None = None,
    last: Array | None = None,
    more: dict[int, Array] | None = None,
    known: tuple[int, ...] = (6,),
    batch: int = 1,
    rotary: bool = True,
    packed: bool = False,
    **attrs: Any,
) -> tuple[Any, dict[str, Array]]:
    """GroupQueryAttention of so many new tokens behind those of a past."""
    total = tokens + past if total is None else total
    widths = [(QUERIES + 2 * KEYS) * SIZE] if packed else [n * SIZE for n in (QUERIES, KEYS, KEYS)]
    inputs: list[Array | None] = [None] * 17
    inputs[: len(widths)] = [normal(batch, tokens, w) for w in widths]
    if past:
        inputs[3:5] = normal(batch, KEYS, past, SIZE), normal(batch, KEYS, past, SIZE)
    inputs[5:7] = ints(*[total - 1] * batch) if last is None else last, ints(total)
    if rotary:
        inputs[7:9] = normal(64, SIZE // 2), normal(64, SIZE // 2)
    for index, array in (more or {}).items():
        inputs[index] = array
    attrs = {"num_heads": QUERIES, "kv_num_heads": KEYS, "do_rotary": int(rotary), **attrs}
    return model_of("GroupQueryAttention", inputs, known, (0, 1, 2), **attrs)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"packed": True},
        {"rotary_interleaved": 1},
        {"softcap": 5.0, "scale": 0.4},
        {"local_window_size": 3},
        {"causal": 0},
        {"smooth_softmax": 0},
        {"smooth_softmax": -1},
        {"batch": 2, "rotary": False},
        {"known": (5,)},
        {"more": {9: np.arange(2, 11)[None]}},
        {"more": {10: normal(1, QUERIES, 9, 9)}, "softcap": 5.0},
    ],
)
def test_a_prompt(attrs: dict[str, Any]) -> None:
    assert_alike(*grouped(9, **attrs))


def test_a_prompt_of_rows_of_other_lengths() -> None:
    """What stands behind a row's last token is nobody's."""
    model, feeds = grouped(5, batch=2, last=ints(4, 2))
    assert_alike(model, feeds, lambda i, a: a if i else a[:, :3])


@pytest.mark.parametrize("known", [(6,), (5, 6)])
@pytest.mark.parametrize(
    "tokens, attrs",
    [
        (1, {}),
        (1, {"batch": 2}),
        (1, {"local_window_size": 3}),
        (1, {"more": {10: normal(1, QUERIES, 1, 7)}}),
        (1, {"more": {10: normal(1, 1, 1, 7)}}),
        (1, {"more": {9: np.array([[4]])}, "packed": True}),
        (3, {"local_window_size": 4}),
        (3, {"rotary": False}),
    ],
)
def test_tokens_behind_a_past(tokens: int, known: tuple[int, ...], attrs: dict[str, Any]) -> None:
    assert_alike(*grouped(tokens, 6, known=known, **attrs))


def test_a_past_that_is_of_another_length_in_each_row() -> None:
    model, feeds = grouped(1, 6, batch=2, last=ints(6, 3))
    assert_alike(model, feeds, lambda i, a: a[:, :, :4] if i else a)


@pytest.mark.parametrize("known", [(6,), (5, 6)])
@pytest.mark.parametrize("tokens, total, last", [(1, 7, 6), (1, 12, 6), (3, 12, 6), (3, 3, 2)])
def test_a_past_with_room_for_more(
    tokens: int, total: int, last: int, known: tuple[int, ...]
) -> None:
    """New keys and values stand behind those that are there; what is behind them is nobody's."""
    model, feeds = grouped(tokens, 12, total, ints(last), known=known)
    assert_alike(model, feeds, lambda i, a: a[:, :, : last + 1] if i else a)


def test_heads_are_normalised_where_there_are_weights() -> None:
    """Onnxruntime does so on GPUs alone: it is given normalised queries and keys."""
    scale, shift = normal(SIZE), normal(SIZE)
    model, feeds = grouped(5, more={14: scale, 15: shift}, qk_norm_epsilon=1e-3)
    (ours, *_) = tunefarm.build(from_onnx(model), Target.host(1)).run(feeds).values()

    def normalised(x: Array, weights: Array) -> Array:
        heads = x.reshape(*x.shape[:2], -1, SIZE)
        root = np.sqrt(np.mean(heads * heads, -1, keepdims=True) + 1e-3)
        return (heads / root * weights).reshape(x.shape).astype(np.float32)

    sides = {0: normalised(feeds["i0"], scale), 1: normalised(feeds["i1"], shift), 2: feeds["i2"]}
    plain, other = grouped(5, more={**sides, 7: feeds["i7"], 8: feeds["i8"]})
    np.testing.assert_allclose(ours, by_onnxruntime(plain, other)[0], rtol=1e-5, atol=1e-5)


def kernels(model: Any) -> list[str]:
    optimized = optimize(from_onnx(model), Target("llvm -mcpu=znver4 -num-cores=1"))
    return [
        " ".join(str(n.op) for n in post_order(k.body) if isinstance(n, Call))
        for k in kernels_of(optimized)
    ]


def test_attention_is_one_kernel() -> None:
    """Also with a mask, and where heads of queries share their keys."""
    rows = [normal(1, 37, 32) for _ in range(3)]
    model, _ = model_of("MultiHeadAttention", [*rows, None, ints(20)], num_heads=4)
    assert any("einsum multiply add softmax einsum" in k for k in kernels(model))
    model, _ = model_of(
        "MultiHeadAttention", [*rows, None, ints(20)], num_heads=4, unidirectional=1
    )
    assert any("einsum multiply add softmax einsum" in k for k in kernels(model))
    model, _ = grouped(37, rotary=False)
    assert any("einsum multiply add softmax einsum" in k for k in kernels(model))


def test_one_token_reads_shared_keys_once() -> None:
    model, _ = grouped(1, 40, rotary=False, known=(5, 6))
    assert not any("broadcast_to" in k for k in kernels(model))


@pytest.mark.parametrize(
    "made, reason",
    [
        (lambda: grouped(5, smooth_softmax=1), "smooth_softmax=1 is not supported"),
        (lambda: grouped(5, more={11: normal(QUERIES)}), r"head_sink \(input 11\) is not"),
        (lambda: grouped(1, 6, known=()), r"total_sequence_length \(input 6\) is computed at run"),
        (lambda: grouped(1, 6, last=ints(9), known=(5, 6)), "9 tokens before 1 others do not fit"),
        (
            lambda: model_of("Attention", projections(), num_heads=N, do_rotary=1),
            "do_rotary=1 is not supported",
        ),
        (
            lambda: model_of("Attention", [*projections(), kept(1, 1, 9, 9)], num_heads=N),
            r"a mask of shape \(1, 1, 9, 9\) for 2 rows of 5 keys",
        ),
        (
            lambda: model_of("MultiHeadAttention", [normal(B, S, N, 3, 4)], num_heads=N),
            "queries, keys and values packed into one tensor are not supported",
        ),
    ],
)
def test_other_forms_are_refused(made: Any, reason: str) -> None:
    model, _ = made()
    with pytest.raises(ModelError, match=reason):
        from_onnx(model)

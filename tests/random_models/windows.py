"""Steps of operators that go over an image by windows: convolutions, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.random_models.draft import Draft, Unsuitable


def spatial(draft: Draft) -> str:
    """A tensor of a batch, channels and one to three dimensions of space, an image mostly."""
    return draft.pick(rank=draft.any(4, 4, 4, 4, 3, 5))


def same_pads(kernel: Sequence[int]) -> list[int]:
    """Pads with which a window of stride 1 keeps the extents."""
    return [taps // 2 for taps in kernel] + [(taps - 1) // 2 for taps in kernel]


def check_fits(space: Sequence[int], attrs: dict[str, Any]) -> None:
    """Unsuitable if a window is wider than the padded input.

    onnxruntime gives no result then, or dies of a division by zero; we refuse the model.
    """
    if attrs.get("auto_pad", "VALID") != "VALID":
        return  # padded until one window fits
    kernel = attrs["kernel_shape"]
    pads = attrs.get("pads", [0] * 2 * len(kernel))
    dilations = attrs.get("dilations", [1] * len(kernel))
    for i, (extent, taps, dilation) in enumerate(zip(space, kernel, dilations, strict=True)):
        if (taps - 1) * dilation + 1 > extent + pads[i] + pads[i + len(kernel)]:
            raise Unsuitable("a window is wider than the padded input")


def conv(draft: Draft) -> str:
    """A convolution: of groups or depthwise, with any strides, dilations and pads."""
    x = spatial(draft)
    _, c, *space = draft.shape(x)
    groups = draft.any(1, 1, 1, c, c, *(g for g in (2, 3, 4, 8) if c % g == 0))
    kernel = [draft.any(1, 1, 3, 3, 3, 5)] * len(space)
    if draft.chance(0.2):
        kernel = [draft.any(1, 1, 3, 3, 3, 5, 2, 7) for _ in space]
    if groups == c:
        k = c * draft.any(1, 1, 1, 2)
    else:
        k = groups * draft.between(1, max(1, 64 // groups))
    attrs = _conv_attributes(draft, kernel)
    check_fits(space, attrs)
    bias = [draft.weights(k, fan=4)] if draft.chance(0.6) else []
    weights = draft.weights(k, c // groups, *kernel)
    return draft.node("Conv", x, weights, *bias, group=groups, **attrs)


def _conv_attributes(draft: Draft, kernel: list[int]) -> dict[str, Any]:
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    attrs["strides"] = [draft.any(1, 1, 1, 2, 2, 3)] * len(kernel)
    attrs["dilations"] = [draft.any(1, 1, 1, 1, 2)] * len(kernel)
    if draft.chance(0.2):
        attrs["auto_pad"] = draft.any("SAME_UPPER", "SAME_LOWER", "VALID")
        if attrs["auto_pad"] != "VALID":
            attrs["dilations"] = [1] * len(kernel)
    elif draft.chance(0.3):
        attrs["pads"] = [draft.between(0, taps // 2 + 1) for taps in kernel * 2]
    else:
        attrs["pads"] = [taps // 2 for taps in kernel] * 2
    return attrs


def plain_conv(draft: Draft, x: str, channels: int, taps: int) -> str:
    """A convolution of an image that keeps its extents."""
    kernel = [taps] * (len(draft.shape(x)) - 2)
    weights = draft.weights(channels, draft.shape(x)[1], *kernel)
    bias = [draft.weights(channels, fan=4)] if draft.chance(0.6) else []
    return draft.node("Conv", x, weights, *bias, pads=same_pads(kernel))


def pointwise(draft: Draft, x: str, channels: int) -> str:
    """A convolution of single pixels with a bias."""
    weights = draft.weights(channels, draft.shape(x)[1], 1, 1)
    return draft.node("Conv", x, weights, draft.weights(channels, fan=4))


def conv_transpose(draft: Draft) -> str:
    x = spatial(draft)
    _, c, *space = draft.shape(x)
    groups = draft.any(1, 1, *(g for g in (2, 3, c) if c % g == 0))
    k = draft.between(1, 24)
    kernel = [draft.any(1, 2, 3, 4)] * len(space)
    strides = [draft.any(1, 2, 2, 3)] * len(space)
    attrs: dict[str, Any] = {"strides": strides, "group": groups}
    if draft.chance(0.5):
        attrs["pads"] = [draft.between(0, (taps - 1) // 2) for taps in kernel * 2]
    if draft.chance(0.3):
        attrs["output_padding"] = [draft.between(0, stride - 1) for stride in strides]
    bias = [draft.weights(k * groups, fan=4)] if draft.chance(0.5) else []
    weights = draft.weights(c, k, *kernel, fan=c * kernel[0])
    return draft.node("ConvTranspose", x, weights, *bias, **attrs)


def pool(draft: Draft) -> str:
    x = spatial(draft)
    op = draft.any("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "Global")
    if op == "Global":
        return draft.node(draft.any("GlobalAveragePool", "GlobalMaxPool"), x)
    space = draft.shape(x)[2:]
    kernel = [draft.any(2, 2, 3, 3, 4, 5) for _ in space]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    attrs["strides"] = [draft.any(1, 2, 2, 3) for _ in space]
    if draft.chance(0.6):
        attrs["pads"] = [draft.between(0, taps // 2) for taps in kernel * 2]
    elif draft.chance(0.3):
        attrs["auto_pad"] = draft.any("SAME_UPPER", "SAME_LOWER")
    if "auto_pad" not in attrs and draft.chance(0.3):
        attrs["ceil_mode"] = 1
    if op == "MaxPool" and "auto_pad" not in attrs and draft.chance(0.2):
        attrs["dilations"] = [draft.any(1, 2) for _ in space]
    if op == "AveragePool" and draft.chance(0.3):
        attrs["count_include_pad"] = 1
    check_fits(space, attrs)
    return draft.node(op, x, **attrs)


def resize(draft: Draft) -> str:
    x = draft.pick(rank=4)
    n, c, h, w = draft.shape(x)
    attrs: dict[str, Any] = {"mode": draft.any("nearest", "nearest", "linear", "cubic")}
    attrs["coordinate_transformation_mode"] = draft.any(
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"
    )
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = draft.any("floor", "round_prefer_floor", "ceil")
    if draft.chance(0.4):
        sizes = draft.ints(n, c, draft.between(1, 2 * h), draft.between(1, 2 * w))
        return draft.node("Resize", x, "", "", sizes, **attrs)
    down, across = draft.any(2, 2, 0.5, 1.5), draft.any(2, 2, 0.5, 1)
    if h * down % 1 or w * across % 1:
        raise Unsuitable("the scales give no whole number of pixels")
    scales = draft.constant(np.array([1, 1, down, across], np.float32))
    return draft.node("Resize", x, "", scales, **attrs)


def blocks_of_pixels(draft: Draft) -> str:
    """Channels become pixels, or pixels channels."""
    x = draft.pick(rank=4)
    _, c, h, w = draft.shape(x)
    if c % 4 == 0 and draft.chance(0.5):
        return draft.node("DepthToSpace", x, blocksize=2, mode=draft.any("DCR", "CRD"))
    if h % 2 or w % 2:
        raise Unsuitable("the image has no whole blocks")
    return draft.node("SpaceToDepth", x, blocksize=2)

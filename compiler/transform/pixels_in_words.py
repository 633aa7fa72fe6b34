"""Convolutions of few channels for a matrix unit: pixels packed into words, which it sums up.

conv[strides = 2](x[n, 3, h, w], k[7, 7, 3, o])
    ->  conv[strides = (2, 3)](words(x)[n, h, 3 · w / 2, 2], k'[7, 12, 2, o])
        words: channels last, two pixels of three channels are three words of two

A step of the unit (AMX) sums sixteen words of two bfloat16s. Of a pixel of three channels it would
sum two, one of them half zeros; those of a window's row lie one behind the other, so that a step
takes all twelve (the kernel has taps of zeros in front and behind, as in ``pack_pixels``).
Constants are packed when the model is built, and one kernel more packs the image and rounds it.
Zeros meet pixels that were in no window before: where these are infinite, results beside them are
NaN.
"""

from __future__ import annotations

from math import prod

from tunefarm.compiler.ir import Attrs, Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pairs, result_channels_last
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.lower_precision import is_lowered
from tunefarm.compiler.transform.pack_pixels import Packing, front_taps, packed, together
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

WORD, GROUPS = 2, 16  # terms in a word, and words in a step
LEAST_OUTPUTS = 16
LEAST_TERMS = 64  # of a window: fewer take less time than the packing and the unit's epilogues


def pixels_in_words(module: IRModule, target: Target) -> IRModule:
    """Runs on channels-last graphs, before products take another precision."""
    allowed = module.main.attrs.get("precision") == "bf16"
    if target.kind != "llvm" or not allowed or not target.has("amx-bf16"):
        return module

    def rule(node: Call, uses: Uses) -> Expr | None:
        packing = _packing(node) if _fits(node) else None
        made = None if packing is None else _in_words(node, packing)
        return made if made and is_lowered(made, "bfloat16", target) else None

    return rewrite_main(module, [rule])


def _fits(node: Call) -> bool:
    """True for convolutions of constant weights of which several words of a pixel, and all of a
    window's row, go into a step."""
    if node.op != "conv" or not isinstance(node.args[1], Constant):
        return False
    attrs, (x, weight) = node.attrs, map(tensor_type, node.args)
    *window, channels, outputs = weight.shape
    return (
        attrs["kernel_layout"] == "SIO"
        and attrs["groups"] == 1
        and x.dtype == "float32"
        and WORD < channels <= GROUPS
        and prod(window) * channels >= LEAST_TERMS
        and outputs >= LEAST_OUTPUTS
        and integers(attrs, "dilations")[-1] == 1
        and attrs["pad_value"] == 0
        and result_channels_last(attrs)
        and tensor_type(node).size > 0
    )


def _packing(node: Call) -> Packing | None:
    """The packing into whole words of which a window's row has the fewest; None if these are more
    than a step takes."""
    *_, taps, channels, _ = tensor_type(node.args[1]).shape

    def words(p: Packing) -> int:
        return -(-(front_taps(node, p) + taps) // p.pixels) * p.pixels * p.channels // WORD

    sizes = [n for n in range(1, together(node) + 1) if together(node) % n == 0]
    found = [Packing(n, c) for c in (channels, channels + 1) for n in sizes if n * c % WORD == 0]
    best = min(found, key=words, default=None)
    return best if best and words(best) <= GROUPS else None


def _in_words(node: Call, packing: Packing) -> Call | None:
    """The convolution whose last spatial axis counts words; None where its windows would be
    others."""
    of_pixels = packed(node, packing)
    if of_pixels is None:
        return None
    (x, weight), attrs = of_pixels.args, of_pixels.attrs
    *front, width, channels = tensor_type(x).shape
    *window, taps, _, outputs = tensor_type(weight).shape
    words = channels // WORD
    *strides, stride = integers(attrs, "strides")
    *padding, (low, high) = pairs(attrs["padding"])
    changed: Attrs = {
        "strides": (*strides, stride * words),
        "padding": (*padding, (low * words, high * words)),
    }
    return call(
        "conv",
        reshape(x, (*front, width * words, WORD)),
        reshape(weight, (*window, taps * words, WORD, outputs)),
        name=node.name,
        **{**attrs, **changed},
    )

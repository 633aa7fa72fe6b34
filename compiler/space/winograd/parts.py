"""Equal parts of a convolution's inputs, each a convolution whose tiles fit the second cache."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.ir import Call, Function, TensorType, Var, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.winograd.transforms import ROW_TILES

LEAST, MOST = 160, 320  # inputs of a part: of fewer, sums are added more often than tiles gain
TRIED = 2  # numbers of parts, from the fewest on
_STEP = 16  # inputs of a line of the cache


def part_counts(conv: Call) -> Sequence[int]:
    """Into how many equal parts the inputs of a convolution may be split, the fewest first; none
    where channels are not last, or Winograd's method does not know so many taps. Inputs of a volume
    are those of all frames that a result reads."""
    attrs = conv.attrs
    if conv.op != "conv" or attrs["groups"] != 1:
        return []
    if (attrs["data_layout"], attrs["kernel_layout"]) != ("NSC", "SIO"):
        return []
    *taps, inputs, _ = tensor_type(conv.args[1]).shape
    if len(taps) not in (2, 3) or max(taps) not in ROW_TILES:
        return []
    terms = inputs * (taps[0] if len(taps) == 3 else 1)
    counts = range(-(-terms // MOST), terms // LEAST + 1)
    return [n for n in counts if n > 1 and inputs % (n * _STEP) == 0][:TRIED]


def equal_parts(function: Function) -> dict[int, Function]:
    """Of a convolution and nothing else: one part, by their number."""
    parts: dict[int, Function] = {}
    conv = function.body
    if not isinstance(conv, Call):
        return parts
    for count in part_counts(conv):
        x, w = (tensor_type(a) for a in conv.args)
        *pixels, inputs = x.shape
        *taps, _, outputs = w.shape
        few = inputs // count
        params = (
            Var("x", TensorType((*pixels, few), x.dtype)),
            Var("w", TensorType((*taps, few, outputs), w.dtype)),
        )
        body = call("conv", *params, **conv.attrs)  # type: ignore[arg-type]
        parts[count] = Function(params, body, function.attrs)
    return parts

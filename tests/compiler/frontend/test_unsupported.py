"""What an import refuses is told at once: operators behind others that are unsupported too."""

from __future__ import annotations

import onnx
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.frontend.onnx import from_onnx

HEAD = '<ir_version: 9, opset_import: ["" : 18, "acme" : 1, "local" : 1]>\n'
REASON = "the operator is not supported"
PATH = """
main (float[2, 3] x) => (float[2, 3] y)
{
    a = First (x)
    b = Relu (a)
    c = acme.Second (b)
    d = Gelu (c)
    y = Third (d, x)
}
"""
BODIES = """
main (float[2, 3] x, bool q) => (float[2, 3] y, float[2, 3] z)
{
    y = If (q) <then_branch = yes () => (float[2, 3] t) { t = InBranch (x) },
                else_branch = no () => (float[2, 3] e) { e = Relu (x) }>
    trips = First (x)
    z = Loop (trips, , y) <body = step (int64 i, bool on, float[2, 3] state)
        => (bool go, float[2, 3] next)
    {
        go = Identity (on)
        next = InLoop (state)
    }>
}
"""
FUNCTION = """
main (float[2, 3] x) => (float[2, 3] y)
{
    a = First (x)
    y = local.twice (a)
}
<domain: "local", opset_import: ["" : 18]>
twice (u) => (w)
{
    v = InFunction (u)
    w = Relu (v)
}
"""


def refusal(text: str) -> list[str]:
    """What an import says of each unsupported operator."""
    with pytest.raises(ModelError) as info:
        from_onnx(onnx.parser.parse_model(HEAD + text))
    start, _, listed = str(info.value).partition(": ")
    assert start == "the model uses what is not supported"
    return listed.split("; ")


def test_operators_behind_an_unsupported_one_are_told_with_it() -> None:
    first, second, third = refusal(PATH)
    assert first == f"First 'a' (float32[2, 3]): {REASON}"
    assert second.startswith(f"acme.Second 'c': {REASON}, nor is there a plug-in for its")
    assert third == f"Third 'y': {REASON}"


def test_so_are_those_of_bodies_that_cannot_be_entered() -> None:
    told = refusal(BODIES)
    assert f"InBranch 't': {REASON}" in told
    assert f"InLoop 'next': {REASON}" in told
    assert f"First 'trips' (float32[2, 3]): {REASON}" in told
    assert any(one.startswith("If 'y' (bool[]): the condition is computed") for one in told)
    assert len(told) == 4


def test_so_are_those_of_functions() -> None:
    assert refusal(FUNCTION) == [
        f"First 'a' (float32[2, 3]): {REASON}",
        f"InFunction 'v': {REASON}",
    ]


def test_a_branch_that_is_not_taken_may_have_any() -> None:
    text = BODIES.replace("bool q)", "int64 n)").partition("trips")[0]
    text = text.replace(", float[2, 3] z)", ")").replace(
        "    y = If", "    q = Constant <value: tensor = bool {0}> ()\n    y = If"
    )
    assert from_onnx(onnx.parser.parse_model(HEAD + text + "}")).output_names == ("y",)


@pytest.mark.parametrize(
    ("count", "names"),
    [(1, "'n0' (float32[2])"), (3, "'n0' (float32[2]), 'n1', 'n2'"),
     (9, "'n0' (float32[2]), 'n1', 'n2' and 6 more")],
)  # fmt: skip
def test_nodes_of_one_operator_are_counted(count: int, names: str) -> None:
    results = ", ".join(f"float[2] n{i}" for i in range(count))
    nodes = "\n".join(f"n{i} = First (x)" for i in range(count))
    told = refusal(f"main (float[2] x) => ({results}) {{\n{nodes}\n}}")
    assert told == [f"First {names}: {REASON}"]


NESTED = """
main (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
{{
    a = First (x)
    y = local.f{last} (a)
    z = local.f{last} (y)
}}
{functions}
<domain: "local", opset_import: ["" : 18, "local" : 1]>
f0 (u) => (w) {{ v = local.f{last} (u)  w = InFunction (v) }}
"""
LEVEL = """
<domain: "local", opset_import: ["" : 18, "local" : 1]>
f{n} (u) => (w) {{ v = local.f{before} (u)  w = local.f{before} (v) }}
"""


def test_functions_that_call_each_other_are_looked_through_once() -> None:
    """Twice at each of 40 levels, and the last of them again at the first."""
    levels = "".join(LEVEL.format(n=n, before=n - 1) for n in range(1, 40))
    first, inside = refusal(NESTED.format(last=39, functions=levels))
    assert first.startswith("First 'a'")
    assert inside == f"InFunction 'w': {REASON}"


INVALID = {
    "MatMul (x, long)": "shapes (2, 3) and (2, 4) do not multiply: the inner extents are 3 and 2",
    "Add (x, double)": "operands have different dtypes, float32 and float64",
    "Add (x, nowhere)": "input 'nowhere' is computed by no node before it",
    "Softmax <axis = 5> (x)": "axis 5 is not",
    "Concat (x, x)": "attribute axis is missing",
    "MatMul (x)": "input 1 is missing",
}
HEADED = "main (float[2, 3] x, float[2, 4] long, double[2, 3] double) => (float[2, 3] y)"


def told_of(text: str) -> str:
    with pytest.raises(ModelError) as info:
        from_onnx(onnx.parser.parse_model(HEAD + f"{HEADED} {{\n{text}\n}}"))
    return str(info.value)


@pytest.mark.parametrize("node", INVALID)
def test_what_onnx_refuses_is_called_invalid(node: str) -> None:
    told = told_of(f"y = {node}")
    assert told.startswith("the model is not valid: ")
    assert INVALID[node] in told


def test_an_output_that_no_node_computes_is_invalid() -> None:
    assert told_of("z = Relu (x)") == "the model is not valid: output 'y': is computed by no node"


def test_what_onnx_does_not_look_at_is_neither_invalid_nor_unsupported() -> None:
    told = told_of("s = Constant <value_ints = [7, 1]> ()\ny = Reshape (x, s)")
    assert told.startswith("the model cannot be imported: Reshape 'y' (float32[2, 3], int64[2]): ")


def test_each_kind_of_fault_has_its_own_sentence() -> None:
    assert told_of("y = First (x)\nz = Add (x, long)\nw = Second (x)") == (
        "the model is not valid: Add 'z' (float32[2, 3], float32[2, 4]): shapes (2, 3) and (2, 4) "
        "do not broadcast; the model uses what is not supported: First 'y' (float32[2, 3]): "
        f"{REASON}; Second 'w' (float32[2, 3]): {REASON}"
    )


def test_an_operator_of_a_domain_of_which_others_are_imported() -> None:
    text = HEAD.replace('"acme"', '"com.microsoft"') + (
        "main (float[2, 16] x, uint8[32] b, float[4] s) => (float[2, 4] y)"
        "{ y = com.microsoft.MatMulBnb4 <K = 16, N = 4, quant_type = 1, block_size = 16> (x, b, s) "
        "}"
    )
    with pytest.raises(ModelError) as info:
        from_onnx(onnx.parser.parse_model(text))
    assert str(info.value) == (
        "the model uses what is not supported: com.microsoft.MatMulBnb4 'y' (float32[2, 16], "
        f"uint8[32], float32[4]): {REASON}, nor is there a plug-in for its domain (an entry "
        "point com.microsoft of tunefarm.onnx)"
    )


@pytest.mark.parametrize("dtype", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_floats_of_eight_bits_are_told(dtype: str) -> None:
    element = getattr(onnx.TensorProto, dtype)
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = [
        onnx.helper.make_tensor("q", element, (4, 2), [1] * 8),
        onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, (), [0.5]),
    ]
    ports = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", (3, 4)), ("y", (3, 2)))
    ]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    reason = f"initializer 'q': element type {dtype.lower()} is not supported$"
    with pytest.raises(ModelError, match=reason):
        from_onnx(onnx.helper.make_model(graph))

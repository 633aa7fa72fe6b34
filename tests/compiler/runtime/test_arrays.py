"""What a caller may pass in."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.arrays import address, as_input

torch = pytest.importorskip("torch")
HALVES = TensorType((3, 5), "bfloat16")


def test_bfloat16_which_numpy_does_not_read_comes_through_dlpack() -> None:
    for values in (torch.randn(3, 5), torch.randn(5, 5)[1:4]):
        given = values.to(torch.bfloat16)
        got = as_input(given, HALVES, "input 'x'", aligned=False)
        assert address(got) == given.data_ptr()
        expected = given.float().numpy()
        del given
        gc.collect()
        np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_bfloat16_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ShapeError, match="'x' is a view that does not lie as in C"):
        as_input(torch.zeros(5, 3, dtype=torch.bfloat16).T, HALVES, "input 'x'")
    with pytest.raises(ShapeError, match=r"'x' cannot be read through DLPack: .*gradient"):
        as_input(torch.zeros(3, 5, dtype=torch.bfloat16, requires_grad=True), HALVES, "input 'x'")
    with pytest.raises(ShapeError, match=r"'x' has shape \(0, 5\), expected"):
        as_input(torch.zeros(0, 5, dtype=torch.bfloat16), HALVES, "input 'x'")
    with pytest.raises(ShapeError, match="'x' has dtype bfloat16, expected float32"):
        as_input(torch.zeros(3, 5, dtype=torch.bfloat16), TensorType((3, 5), "float32"), "'x'")
    with pytest.raises(ShapeError, match="'x' cannot be read through DLPack"):
        as_input(torch.zeros(3, 5, device="meta"), HALVES, "input 'x'")

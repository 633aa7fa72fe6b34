"""The committed exports of PyTorch, compiled, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tunefarm.compiler.target import Target

import tunefarm

MODELS = Path(__file__).parent / "models"
SHAPES = {"dynamic_attention": {"x": (3, 4, 16)}}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda p: p.stem)
def test_a_compiled_export_agrees_with_onnxruntime(path: Path) -> None:
    model = onnx.load(path)
    module = tunefarm.from_onnx(model, shapes=SHAPES.get(path.stem))
    rng = np.random.default_rng(0)
    feeds = {
        p.name: (
            rng.standard_normal(p.type.shape).astype(p.type.dtype)
            if p.type.dtype == "float32"
            else rng.integers(1, 5, p.type.shape).astype(p.type.dtype)
        )
        for p in module.main.params
    }
    got = tunefarm.build(module, Target.host(2)).run(feeds)
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert len(got) == len(want)
    for result, expected in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)

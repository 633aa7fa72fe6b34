"""ONNX's own node tests, run by compiled code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PASSED_AT_LEAST = 1418


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "conformance.py"
    spec = importlib.util.spec_from_file_location("bench_conformance_compiled", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_no_compiled_node_test_is_wrong(
    conformance: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = conformance.run_cases(conformance.node_cases(), conformance._build)
    passed = sum(o.verdict == "passed" for o in outcomes)
    with capsys.disabled():
        print(f"\ncompiled: {passed} of {len(outcomes)} node tests of ONNX pass")
    assert [o for o in outcomes if o.verdict == "wrong"] == []
    assert passed >= PASSED_AT_LEAST

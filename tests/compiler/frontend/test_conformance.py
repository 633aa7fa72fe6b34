"""ONNX's own node tests, run by the evaluator."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tunefarm.compiler.evaluate import evaluate


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    path = Path(__file__).parents[3] / "bench" / "conformance.py"
    spec = importlib.util.spec_from_file_location("bench_conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_no_node_test_is_wrong_and_most_pass(conformance: ModuleType) -> None:
    outcomes = conformance.run_cases(conformance.node_cases(), evaluate)
    assert [o for o in outcomes if o.verdict == "wrong"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= 0.78 * len(outcomes)


def test_a_wrong_answer_is_told(conformance: ModuleType) -> None:
    (case,) = [c for c in conformance.node_cases("test_relu") if c.name == "test_relu"]
    outcome = conformance.run_case(case, lambda module, feeds: [feeds["x"]])
    assert outcome.verdict == "wrong"
    assert "differs in" in outcome.reason

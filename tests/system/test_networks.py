"""Whole networks, compiled with the default configs, and exported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from tunefarm.compiler.target import Target

import tunefarm
from tunefarm.peers.race import random_feeds

BENCH = Path(__file__).parents[2] / "bench"
LIGHT = ("shufflenet", "squeezenet")
CODE: dict[str, Callable[[ModuleType], onnx.ModelProto]] = {
    "resnet18": lambda models: models.resnet18(size=128),
    "mobilenet_v2": lambda models: models.mobilenet_v2(),
    "bert": lambda models: models.bert_base(tokens=32, layers=2, vocabulary=100),
    "vit": lambda models: models.vit_s16(size=96, layers=2),
}

# Run by a fresh interpreter: what building and importing need cannot be imported.
LOAD_AND_RUN = """
import sys
for absent in ("llvmlite", "onnx", "onnxruntime", "xgboost", "sqlalchemy", "grpc"):
    sys.modules[absent] = None
import numpy as np
import tunefarm
library, feeds, results = sys.argv[1:]
outputs = tunefarm.load_module(library).run(dict(np.load(feeds)))
np.savez(results, *outputs.values())
"""


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    return _bench_module("networks")


@pytest.fixture(scope="module")
def models() -> ModuleType:
    return _bench_module("models")


def _bench_module(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


def _told(capsys: pytest.CaptureFixture[str], what: str, error: float) -> float:
    with capsys.disabled():
        print(f"\n{what}: {error:.1e}", end=" ")
    return error


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_light_network_gives_the_shipped_output(
    networks: ModuleType, name: str, cores: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = networks.shipped_error(name, Target.host(cores))
    assert _told(capsys, f"{name}, shipped", error) <= networks.LIMIT


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_network_with_random_weights_agrees_with_onnxruntime(
    networks: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = networks.random_error(networks.randomized(networks.light(name)), Target.host(2))
    assert _told(capsys, f"{name}, random", error) <= networks.LIMIT


@pytest.mark.parametrize("name", LIGHT)
def test_random_weights_keep_the_signal_alive(networks: ModuleType, name: str) -> None:
    """Other weights and another input change the answer by far more than the allowed error.

    Least measured: 1.6e-2, by another input of SqueezeNet.
    """
    outputs = []
    for weights, inputs in ((0, 0), (1, 0), (0, 1)):
        model = networks.randomized(networks.light(name), weights)
        feeds = random_feeds(tunefarm.from_onnx(model), inputs)
        outputs.append(networks.reference(model, feeds))
    assert np.isfinite(outputs[0][0]).all()
    assert networks.error(outputs[1], outputs[0]) > 10 * networks.LIMIT
    assert networks.error(outputs[2], outputs[0]) > 10 * networks.LIMIT


@pytest.mark.parametrize("timed", ["models_vs_peers", "demo"])
def test_rounding_does_not_decide_a_light_network_that_peers_are_timed_on(
    networks: ModuleType, timed: str, tmp_path: Path
) -> None:
    """With its own weights SqueezeNet answers 0.001, or 0 and 0.125, by the order of a sum."""
    if timed == "demo":
        model = onnx.load(_bench_module("demo").squeezenet(tmp_path))
    else:
        model = _bench_module("models_vs_peers").load("light_squeezenet")
    feeds = random_feeds(tunefarm.from_onnx(model))
    rounded = {name: value * np.float32(1 + 1e-6) for name, value in feeds.items()}
    outputs = [networks.reference(model, f)[0] for f in (feeds, rounded)]
    assert len(np.unique(outputs[0])) > 100
    assert networks.error(outputs[1:], outputs[:1]) < 1e-5


@pytest.mark.parametrize("name", CODE)
def test_a_model_in_code_agrees_with_onnxruntime(
    networks: ModuleType, models: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = networks.random_error(CODE[name](models), Target.host(2))
    assert _told(capsys, f"{name}, random", error) <= networks.LIMIT


def test_a_networks_text_and_constants_make_it_again(networks: ModuleType, tmp_path: Path) -> None:
    module = tunefarm.from_onnx(networks.randomized(networks.light("squeezenet")))
    np.savez(tmp_path / "constants.npz", **module.constants)
    again = tunefarm.parse_module(str(module), np.load(tmp_path / "constants.npz"))
    feeds = random_feeds(module)
    first, second = (tunefarm.build(m, Target.host(2)).run(feeds) for m in (module, again))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_an_exported_model_runs_where_nothing_can_be_built(
    networks: ModuleType, models: ModuleType, name: str, tmp_path: Path
) -> None:
    module = tunefarm.from_onnx(CODE[name](models))
    feeds = random_feeds(module)
    built = tunefarm.build(module, Target.host(2))
    built.export_library(tmp_path / "model.so")
    np.savez(tmp_path / "feeds.npz", **feeds)
    paths = [str(tmp_path / n) for n in ("model.so", "feeds.npz", "results.npz")]
    subprocess.run([sys.executable, "-c", LOAD_AND_RUN, *paths], check=True, timeout=60)
    results = np.load(paths[-1])
    for got, want in zip(results.values(), built.run(feeds).values(), strict=True):
        np.testing.assert_array_equal(got, want)

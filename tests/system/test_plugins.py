"""A package with an operator, its sketch and its ONNX converter, found by its entry points alone,
on a farm of real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.records import Job
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError

from tests.patience import wait_for

PACKAGE = Path(__file__).with_name("plugin")
LIMIT_S = 120.0
TARGET = "llvm -num-cores=1"
CLIENT = """
import json, sys
import numpy as np
import onnx
from onnx import TensorProto, helper
import tunefarm
from tunefarm.compiler.target import Target

graph = helper.make_graph(
    [helper.make_node("SumSquaresOfRows", ["x"], ["y"], domain="com.toy")],
    "toy",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [250, 80])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
)
domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.toy", 1)]
model = helper.make_model(graph, opset_imports=domains, ir_version=10)
module = tunefarm.from_onnx(model)
target = Target(sys.argv[2])
tasks = tunefarm.extract_tasks(module, target)
told = tunefarm.tune(tasks, tracker=sys.argv[1], trials=6)
with tunefarm.apply_history_best("tracker://" + sys.argv[1], strict=True) as history:
    built = tunefarm.build(module, target)
x = np.random.default_rng(1).standard_normal((250, 80), np.float32)
(decision,) = history.decisions.values()
print(json.dumps({
    "job": told.job.id,
    "trials": told.trials,
    "selector": told.job.selector,
    "status": str(decision.status),
    "reason": decision.reason,
    "error": float(np.abs(built.run({"x": x})["y"] / (x * x).sum(axis=1) - 1).max()),
}))
"""


@dataclass
class Farm:
    """Processes of a farm, each with the package or without."""

    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def rendezvous(self) -> Path:
        return self.folder / "farm.db.tracker.json"

    def start(self, name: str, *words: str, package: Path | None = PACKAGE) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "tunefarm", *words]
            environment = self.environment(package)
            self.running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def environment(self, package: Path | None) -> dict[str, str]:
        own = {"TUNEFARM_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        path = {"PYTHONPATH": str(package)} if package else {}
        return {**os.environ, **own, **path}

    def start_tracker(self) -> None:
        place = ["--db", str(self.folder / "farm.db"), "--rendezvous", str(self.rendezvous)]
        self.start("tracker", "tracker", *place, "--lease-term-s", "5", package=None)
        self.wait_for(self._answers, "the tracker")

    def _answers(self) -> bool:
        with suppress(FarmError), self.client() as client:
            return client.info().started_at > 0
        return False

    def client(self) -> FarmClient:
        return FarmClient.from_rendezvous(self.rendezvous, connect_s=30.0)

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, lambda: f"{what}\n{self.logs()}", LIMIT_S)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(
            f"--- {p.name}\n{p.read_text()[-2000:]}" for p in self.folder.glob("*.log")
        )

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    made = Farm(tmp_path)
    made.start_tracker()
    yield made
    made.close()


def tune(farm: Farm) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CLIENT, str(farm.rendezvous), TARGET]
    with (farm.folder / "client.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=farm.environment(PACKAGE), stdout=subprocess.PIPE, stderr=log
        )
    farm.running.append(process)
    return process


def answer(farm: Farm, client: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, _ = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 0, farm.logs()
    told: dict[str, Any] = json.loads(out)
    return told


def only_job(farm: Farm) -> Job | None:
    with farm.client() as client:
        found = client.jobs()
    return found[0] if found else None


def test_a_model_is_tuned_with_a_package(farm: Farm) -> None:
    place = ["--tracker", str(farm.rendezvous)]
    farm.start("worker", "worker", *place, "--target", TARGET, "--max-drift", "0")
    farm.start("tuner", "tuner", *place)
    told = answer(farm, tune(farm))
    assert told["trials"] == 6
    assert told["status"] in ("exact", "confirmed")
    assert told["error"] < 1e-5
    (version,) = re.findall(r'^plugin\.toy-ops="(0\.1\+[0-9a-f]{8})"$', told["selector"])
    with farm.client() as client:
        (device,) = client.devices()
        trials = client.collect(told["job"]).trials
    assert device.attributes["plugin.toy-ops"] == version
    assert {trial.compiler_version for trial in trials} == {
        f"{device.compiler_version} toy-ops=={version}"
    }
    assert [trial for trial in trials if not trial.ok] == []
    assert trials[0].config == {"sketch": "toy_rows", "rows": 1, "pieces": 1}


def test_a_job_waits_for_who_has_its_package(farm: Farm, tmp_path: Path) -> None:
    """Workers and tuners without it, or with a broken one of its name, go on with other jobs."""
    broken = tmp_path / "broken"
    (broken / "toy_ops-0.1.dist-info").mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        text = (PACKAGE / "toy_ops-0.1.dist-info" / name).read_text()
        (broken / "toy_ops-0.1.dist-info" / name).write_text(text)
    (broken / "toy_ops.py").write_text("import a_module_that_nobody_has\n")
    place = ["--tracker", str(farm.rendezvous)]
    farm.start("worker", "worker", *place, "--target", TARGET, "--max-drift", "0", package=broken)
    farm.start("tuner", "tuner", *place, package=None)
    farm.wait_for(lambda: "worker offers" in farm.log("worker"), "the worker")
    sentence = (
        "plug-in toy-ops 0.1: entry point sum_squares of tunefarm.operators (toy_ops:OPERATOR) "
        "cannot be loaded: ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    )
    assert farm.log("worker").count(sentence) == 1
    client = tune(farm)
    job = farm.wait_for(lambda: only_job(farm), "the job")
    assert job.unmet.startswith("its tasks are made with plug-in toy-ops 0.1+")
    assert "the workers that run its target do not have it" in job.unmet
    second = ["--target", TARGET, "--max-drift", "0", "--name", "second"]
    farm.running[1].terminate()
    farm.running[1].wait()
    farm.start("second", "worker", *place, *second)
    farm.wait_for(lambda: "no tuner that asks" in only_job(farm).unmet, "the tuner's sentence")
    farm.start("tuner2", "tuner", *place)
    assert answer(farm, client)["trials"] == 6

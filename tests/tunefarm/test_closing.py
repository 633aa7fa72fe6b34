"""The closing step: bests meet their rivals in whole runs of a real model, over a real database."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.host import device_model
from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db.records import (
    Best,
    BestKey,
    Final,
    Found,
    History,
    Promotion,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
)
from tunefarm.db.store import Store

import tunefarm
from tests.patience import wait_for
from tunefarm import api
from tunefarm.closing import Closing, close, close_on_farm, model_name
from tunefarm.embedded import EmbeddedFarm

SLOW = {"rw": 1, "nv": 1, "ku": 1}  # one accumulator: each multiply-add waits for the last
OTHER = {"next_panel": 0, "prefetch": 8}  # about as fast as the default
SECONDS = 100.0  # not spent: rounds are bounded too


@dataclass(frozen=True)
class Database:
    """A database as the closing step asks it."""

    store: Store

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]:
        return self.store.best(keys)

    def history(
        self, target: str = "", cursor: int = 0, *, workloads: Sequence[str] = ()
    ) -> History:
        return self.store.history(target, cursor, workloads=workloads, limit=2)

    def promote(self, final: Final) -> Promotion:
        return self.store.promote(uuid.uuid4().hex, final)

    def standing(self, task: Task) -> Best:
        key = key_of(task)
        return self.store.best([key])[key][0].best


@pytest.fixture(scope="module")
def target() -> Target:
    """One core: threads that wait for one another suffer most from a busy machine. Strict: without
    Strassen's method, which has no knobs that make it slow."""
    return Target(f"{Target.host(1)} -precision=strict")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> IRModule:
    """Two products of matrices, the first with a ReLU."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((256, 256)).astype("float32") for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("Relu", ["h"], ["k"]),
            helper.make_node("MatMul", ["k", "w1"], ["y"]),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [128, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    path = tmp_path_factory.mktemp("closing") / "products.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return api.from_onnx(path)


@pytest.fixture(scope="module")
def tasks(module: IRModule, target: Target) -> list[Task]:
    return api.extract_tasks(module, target)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Store.open(str(tmp_path / "tuning.db")) as store:
        yield Database(store)


def key_of(task: Task) -> BestKey:
    model = device_model(task.target.num_cores)
    return BestKey(task.workload.key, task.target.text, model)


def trial_of(task: Task, number: int, config: Config, seconds: float) -> Trial:
    space = config_space(task.workload, task.target)
    assert space.valid(space.encode(config)[None])[0]
    return Trial(
        "job",
        TaskKey(task.workload.key, task.target.text),
        number,
        config,
        (seconds,) * 3,
        device_model=key_of(task).device_model,
        space_fingerprint=space.fingerprint,
        created_at=float(number),
    )


def tuned(database: Database, task: Task, *changes: Config, seconds: float = 1e-3) -> list[Trial]:
    """Store a default and configs that differ from it, the first of these promoted."""
    default = config_space(task.workload, task.target).default
    trials = [trial_of(task, 0, default, 2 * seconds)]
    trials += [trial_of(task, n, {**default, **c}, seconds) for n, c in enumerate(changes, 1)]
    database.store.add_trials(trials)
    promote(database, trials[1])
    return trials


def promote(database: Database, trial: Trial) -> None:
    key = BestKey(trial.task.workload, trial.task.target, trial.device_model)
    trial_key = TrialKey(trial.job, trial.task, trial.number)
    final = Final(key, trial_key, None, Verdict.BETTER, None, 2.0)
    assert database.promote(final).promoted


def test_a_default_that_makes_the_model_faster_takes_the_place_of_the_best(
    database: Database, module: IRModule, tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    default, slow = tuned(database, tasks[0], SLOW)
    said: list[str] = []
    closing = close(database, module, target, SECONDS, say=said.append)
    assert closing is not None
    assert closing.replaced == (key_of(tasks[0]),)
    assert closing.met == 1
    assert closing.after_s < closing.before_s
    assert "1 was replaced" in closing.summary()
    assert len(said) == 1
    assert "in the whole model" in said[0]

    best = database.standing(tasks[0])
    assert (best.trial, best.promoted, best.verdict) == (default, True, Verdict.BETTER)
    assert best.model == model_name(tasks)
    assert best.model_speedup is not None
    assert best.model_speedup > 1.1
    with api.apply_history_best(f"sqlite:///{tmp_path}/tuning.db") as history:
        decisions = history.lookup([t.workload for t in tasks], target)
    assert decisions[0].config == default.config
    assert "the default itself; in the whole model" in history.explain()
    assert close(database, module, target, SECONDS) is None, "nothing is left to decide"
    assert slow in database.store.trials_of("job").trials


def test_a_best_that_stands_is_marked_and_meets_no_rival_again(
    database: Database, module: IRModule, tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    _, best = tuned(database, tasks[0], OTHER)
    closing = close(database, module, target, SECONDS, noise=9.0)
    assert closing is not None
    assert closing.replaced == ()
    assert closing.after_s == closing.before_s
    assert closing.summary().startswith("1 best met its rivals in the whole model")
    standing = database.standing(tasks[0])
    assert (standing.trial, standing.model) == (best, model_name(tasks))
    with api.apply_history_best(f"sqlite:///{tmp_path}/tuning.db") as history:
        history.lookup([tasks[0].workload], target)
    assert "trial 1, 2.00x the default; in the whole model " in history.explain()
    assert history.explain().endswith("x its rival")
    assert close(database, module, target, SECONDS, noise=9.0) is None


def test_a_second_best_that_makes_the_model_faster_takes_the_place_of_the_best(
    database: Database, module: IRModule, tasks: list[Task], target: Target
) -> None:
    """No default is stored here: only the two are there to compare."""
    default = config_space(tasks[0].workload, target).default
    slow = trial_of(tasks[0], 1, {**default, **SLOW}, 1e-3)
    second = trial_of(tasks[0], 2, {**default, **OTHER}, 1.01e-3)
    third = trial_of(tasks[0], 3, {**default, "prefetch": 8}, 1.02e-3)
    database.store.add_trials([slow, second, third])
    promote(database, slow)
    closing = close(database, module, target, SECONDS)
    assert closing is not None
    assert closing.replaced == (key_of(tasks[0]),)
    assert database.standing(tasks[0]).trial == second


def test_the_heaviest_task_comes_first_and_each_verdict_is_stored_as_it_comes(
    database: Database, module: IRModule, tasks: list[Task], target: Target
) -> None:
    _, light = tuned(database, tasks[0], SLOW)
    heavy, _ = tuned(database, tasks[1], SLOW, seconds=2e-3)

    @dataclass(frozen=True)
    class Interrupted(Database):
        def promote(self, final: Final) -> Promotion:
            super().promote(final)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        close(Interrupted(database.store), module, target, SECONDS)
    assert database.standing(tasks[0]).trial == light
    assert database.standing(tasks[1]).trial == heavy


def test_defaults_that_win_only_together_take_the_places_of_the_bests(
    database: Database, module: IRModule, tasks: list[Task], target: Target
) -> None:
    """The model cannot run in half of the time if one of its two equal products gets faster."""
    defaults = [tuned(database, task, SLOW)[0] for task in tasks]
    closing = close(database, module, target, SECONDS, noise=1.2)
    assert closing is not None
    assert set(closing.replaced) == {key_of(task) for task in tasks}
    assert closing.met == 2
    assert closing.after_s < closing.before_s / 2.2
    assert [database.standing(task).trial for task in tasks] == defaults
    assert close(database, module, target, SECONDS) is None, "nothing is left to decide"


def test_nothing_to_decide(
    database: Database, module: IRModule, tasks: list[Task], target: Target
) -> None:
    def nothing(seconds: float = SECONDS) -> bool:
        said: list[str] = []
        return close(database, module, target, seconds, say=said.append) is None and not said

    assert nothing(), "no record"
    default = config_space(tasks[0].workload, target).default
    provisional = trial_of(tasks[0], 1, {**default, **SLOW}, 1e-3)
    standing = trial_of(tasks[1], 0, config_space(tasks[1].workload, target).default, 1e-3)
    database.store.add_trials([provisional, standing])
    promote(database, standing)
    assert nothing(), "one is not promoted, the other is the default"
    promote(database, provisional)
    database.store.add_trials([trial_of(tasks[0], 0, default, 2e-3)])
    assert not nothing(seconds=0.0), "there is no time"
    assert database.standing(tasks[0]).model == ""
    assert not nothing()


def test_it_says_what_time_is_missing(
    database: Database,
    module: IRModule,
    tasks: list[Task],
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned(database, tasks[0], SLOW)

    def said() -> str:
        told: list[str] = []
        assert close(database, module, target, SECONDS, say=told.append) is None
        (line,) = told
        return line

    late = r"after \d+\.\d s of its 100\.0 s, a tenth of the tuning's time at most"
    with monkeypatch.context() as patch:
        patch.setattr("tunefarm.closing._compiled", lambda *_: False)
        assert re.fullmatch(
            f".* left out: not all kernels to be timed were compiled {late}", said()
        )
    monkeypatch.setattr("tunefarm.closing.MIN_BLOCKS", 10**6)
    assert re.fullmatch(
        r"the closing step was left out: it needs \d+\.\d s, and takes at most a tenth of the "
        r"tuning's time \(100\.0 s, of which \d+\.\d s are left\)",
        said(),
    )


def test_a_model_of_which_two_builds_have_no_room_is_left_alone(
    database: Database,
    module: IRModule,
    tasks: list[Task],
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, slow = tuned(database, tasks[0], SLOW)
    monkeypatch.setattr("tunefarm.whole_model.MODEL_BYTES", 1 << 20)
    with pytest.raises(TunefarmError, match="2 builds of the model take"):
        close(database, module, target, SECONDS)
    assert database.standing(tasks[0]).trial == slow


def test_the_name_of_a_model_is_that_of_its_tasks(tasks: list[Task]) -> None:
    assert model_name(tasks) == model_name(reversed(tasks))
    assert model_name(tasks) != model_name([*tasks[:-1], replace(tasks[-1], weight=2)])
    assert model_name(tasks) != model_name(tasks[:1])


def test_a_summary_counts(tasks: list[Task]) -> None:
    keys = tuple(key_of(task) for task in tasks)
    assert Closing(4, keys[:1], 11.5e-3, 11.3e-3).summary() == (
        "4 bests met their rivals in the whole model (11.5 ms a run): 1 was replaced, then 11.3 ms"
    )
    assert Closing(4, (), 1e-3, 1e-3).summary().endswith("(1.00 ms a run): all stand")
    assert (
        Closing(3, (), 1e-3, 1e-3, 2)
        .summary()
        .endswith("all stand; the time did not suffice to tell what 2 cost or gain")
    )
    assert Closing(0, (), 1e-3, 1e-3).summary().startswith("no best met a rival")


def test_on_a_farm_the_device_of_this_machine_is_leased(
    module: IRModule, tasks: list[Task], target: Target, home: Path
) -> None:
    """Which is of no precision, as devices of farms are."""
    path = home / "tunefarm.db"
    home.mkdir()
    with Store.open(str(path)) as store:
        default, _ = tuned(Database(store), tasks[0], SLOW)
    with EmbeddedFarm(f"sqlite:///{path}", str(Target.host(1))) as farm:
        assert close_on_farm(farm.client, module, Target("sim"), SECONDS) is None
        wait_for(lambda: bool(farm.client.devices()))
        with pytest.raises(KeyboardInterrupt):
            close_on_farm(farm.client, module, target, SECONDS, stopped)
        assert farm.client.leases() == ()
        leased: list[int] = []
        closing = close_on_farm(
            farm.client, module, target, SECONDS,
            lambda _: leased.append(len(farm.client.leases())),
        )  # fmt: skip
        assert leased == [1]
        assert farm.client.leases() == ()
    assert closing is not None
    assert closing.replaced == (key_of(tasks[0]),)
    with Store.open(str(path)) as store:
        assert Database(store).standing(tasks[0]).trial == default


def test_tune_ends_with_it(
    module: IRModule, tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    """The job is of one task, so that its finals leave the other's best to the closing step."""
    path = str(tmp_path / "tuning.db")
    with Store.open(path) as store:
        default, _ = tuned(Database(store), tasks[0], SLOW)
    said: list[str] = []
    result = tunefarm.tune(
        tasks[1:], db=path, trials=2, seconds=200.0, module=module, say=said.append
    )
    assert result.closing is not None
    assert result.closing.replaced == (key_of(tasks[0]),)
    assert len(said) == 1
    with Store.open(path) as store:
        assert Database(store).standing(tasks[0]).trial == default


def stopped(_: str) -> None:
    raise KeyboardInterrupt

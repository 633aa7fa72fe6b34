"""Our builds beside onnxruntime, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.host import device_model
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.db.records import TaskKey, Trial

from tunefarm import api
from tunefarm.benchmark import Subject, defaults
from tunefarm.cli.app import run
from tunefarm.cli.bench import race_remarks
from tunefarm.peers.libraries import in_onnxruntime
from tunefarm.peers.pace import Turns
from tunefarm.peers.race import Race, race, race_columns, random_feeds
from tunefarm.peers.rows import DEFAULT, TUNED, Row


def tuned_records(model: str, target: Target) -> tuple[Trial, ...]:
    """A record of the model's task with another config than the default."""
    (task,) = api.extract_tasks(api.from_onnx(model), target)
    space = config_space(task.workload, target)
    other = next(
        config
        for knob in space.sketches[0].knobs
        for choice in knob.choices
        if (config := {**space.default, knob.name: choice}) != dict(space.default)
        and space.valid(space.encode(config)[None])[0]
    )
    common = {
        "device_model": device_model(target.num_cores),
        "space_fingerprint": space.fingerprint,
    }
    key = TaskKey(task.workload.key, target.text)
    return (
        Trial("job", key, 0, space.default, (2e-3,), **common),
        Trial("job", key, 1, other, (1e-3,), **common),
    )


def cells(races: list[Race], name: str) -> list[str]:
    (column,) = (c for c in race_columns(races) if c.name == name)
    return list(column.cells)


def test_both_builds_race_and_agree_with_onnxruntime(model: str) -> None:
    target = Target.host(1)
    subject = Subject(Path(model), {}, tuned_records(model, target))
    turns: list[int] = []
    result = race(subject, target, ["onnxruntime"], repeats=2, heard=turns.append)
    assert turns == [1, 2]
    assert list(result.row.seconds) == [TUNED, DEFAULT, "onnxruntime"]
    assert all(0 < seconds < 1 for seconds in result.row.seconds.values())
    assert result.row.errors["onnxruntime"] == 0
    assert max(result.row.errors.values()) < 1e-5
    assert result.row.flops == 2 * 8 * 16 * 24
    assert 0 < (result.row.share(TUNED) or 0) < 1
    assert not result.warnings()
    assert cells([result], "library")[:2] == ["tunefarm, tuned", "tunefarm, default"]
    assert cells([result], "error")[2] == "reference"
    assert cells([result], "times ours")[0] == "1.00x"


def test_a_library_that_cannot_run_the_model_is_told(model: str) -> None:
    with pytest.raises(TunefarmError, match=r"no other library can run .* \(nobody: KeyError"):
        race(Subject(Path(model), {}), Target.host(1), ["nobody"], repeats=1)


def test_the_command_names_what_installs_a_missing_library(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert run(["bench", model, "--peers", "--cores", "1", "--repeat", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OpenVINO is not installed")
    assert lines[0].endswith("pip install 'tunefarm[bench]' brings it")
    assert any(line.lstrip().startswith("1  onnxruntime 1.") for line in lines)
    assert any(line.startswith("1 core: tunefarm runs") for line in lines)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run(["bench", model, "--peers"]) == 2
    assert "--peers needs onnxruntime or OpenVINO; pip" in capsys.readouterr().err


def test_ratios_are_to_the_build_that_a_user_gets_and_wrong_answers_are_told() -> None:
    seconds = {TUNED: 1e-3, DEFAULT: 2e-3, "a": 3e-3, "b": 1.5e-3}
    errors = {TUNED: 2e-6, DEFAULT: 1e-6, "a": 0.0, "b": 0.3}
    history = api.apply_history_best(())
    result = Race(2, Row("model", seconds, 0, 0.0, errors), "a", history, {"c": "it is broken"})
    assert cells([result], "times ours") == ["1.00x", "2.00x", "3.00x", "1.50x"]
    assert result.summary() == "2 cores: tunefarm runs 1.50x as fast as b, the best peer"
    assert result.warnings() == [
        "c cannot run this model: it is broken",
        "b differs from a by 3e-01 of the largest magnitude: usual in quantised models (without "
        "VNNI onnxruntime saturates, unless it is told session.x64quantprecision), else wrong",
    ]


def test_slow_turns_are_those_of_a_number_of_cores() -> None:
    row = Row("m", {DEFAULT: 1.0, "b": 2.0}, 10, 1e9, {DEFAULT: 0.0, "b": 0.0})
    races = [
        Race(cores, row, "b", defaults(), {"c": "no"}, turns=Turns(20, repeated, 0))
        for cores, repeated in ((1, 3), (2, 3), (4, 0))
    ]
    slow = "The host slowed the processors down: 3 of 20 turns were timed again."
    assert race_remarks(races) == [
        "c cannot run this model: no",
        f"1 core: {slow}",
        f"2 cores: {slow}",
    ]
    assert race_remarks(races[:1])[-1] == slow


def test_other_precisions_are_told_and_may_round() -> None:
    row = Row("model", {DEFAULT: 2e-3, "a": 3e-3}, errors={DEFAULT: 4e-3, "a": 0.0})
    result = Race(1, row, "a", api.apply_history_best(()), {})
    assert len(result.warnings()) == 1
    rounded = replace(result, precision="bf16")
    assert not rounded.warnings()
    assert cells([rounded], "library") == ["tunefarm, default, bf16", "a"]
    other = Row("model", {DEFAULT: 2e-3, "OpenVINO": 3e-3}, errors={DEFAULT: 0.0, "OpenVINO": 4e-3})
    told = replace(rounded, row=other)
    assert not told.warnings()
    assert cells([told], "library")[1].endswith(", bf16")
    assert told.summary().endswith(", bf16")


@pytest.mark.parametrize("as_bytes", [False, True])
def test_open_shapes_are_fixed_for_a_library(
    tmp_path: Path, save_model: Callable[..., Path], as_bytes: bool
) -> None:
    path = save_model(tmp_path / "open.onnx", rows="batch")
    shapes = {"x": (5, 16)}
    feeds = random_feeds(api.from_onnx(path, shapes))
    given = onnx.load(path).SerializeToString() if as_bytes else str(path)
    contender = in_onnxruntime(given, feeds, 1, shapes)
    contender.call()
    (output,) = contender.outputs()
    np.testing.assert_allclose(output, feeds["x"] @ np.ones((16, 24)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("cores", "wrong"), [("two", "two"), ("0", "0"), ("1,999", "999"), ("1,,1", ""), ("²", "²")]
)
def test_numbers_of_cores_that_cannot_be(
    model: str, cores: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", model, "--cores", cores]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        f"tunefarm: --cores {cores!r}: {wrong!r} is not a number of cores from 1"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (f"-mcpu={Target.host().mcpu} -num-cores=999", "asks for 999 cores"),
        ("-mtriple=wasm32-unknown-unknown", "is for wasm32, and this machine is"),
    ],
)
def test_what_this_machine_cannot_run_is_not_timed(
    model: str, options: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", model, "--roofline", "--target", f"llvm {options}"]) == 2
    told = capsys.readouterr()
    assert expected in told.err
    assert not told.out


def test_builds_for_a_gpu_are_timed_where_they_run(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    target = ("--target", "cuda -arch=sm_90a")
    assert run(["bench", model, *target, "--repeat", "1"]) == 0
    assert "for cuda -arch=sm_90a on emulated sm_90a" in capsys.readouterr().out
    for option in ("--peers", "--roofline"):
        assert run(["bench", model, *target, option]) == 2
        assert "--peers and --roofline are for processors" in capsys.readouterr().err

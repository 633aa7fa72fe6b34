"""A user's mistakes: one sentence that says what is wrong, exit code 2, and no traceback."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler.runtime.export import c_prefix, names_functions
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.lower_precision import without_effect
from tunefarm.db.errors import StoreError
from tunefarm.db.store import Store

import tunefarm
from tunefarm import api
from tunefarm.cli.app import UNAVAILABLE, run
from tunefarm.cli.options import Asked
from tunefarm.embedded import with_folder
from tunefarm.texts import size


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; its sentence."""
    assert run(arguments) == 2
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    lines = errors.strip().splitlines()
    assert len(lines) == 1, errors
    return lines[0]


def test_a_file_that_is_not_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("these are notes")
    assert "notes.onnx" in mistake(capsys, "tasks", str(path))


@pytest.mark.parametrize("name", ["net.py", "net.pt", "net.pth"])
def test_a_file_that_comes_before_an_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    assert f"{name} does not exist" in mistake(capsys, "tasks", str(path))
    path.write_text("import torch")
    told = mistake(capsys, "tasks", str(path))
    assert "torch.export.save to a .pt2 file, or give it to tunefarm.from_torch" in told


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.onnx" in mistake(capsys, "tasks", str(tmp_path / "none.onnx"))


def test_a_folder_for_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = mistake(capsys, "tasks", str(tmp_path))
    assert f"{tmp_path} is a folder; give the ONNX file in it" in told


def test_an_unsupported_operator_names_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save_model: Callable[..., Path]
) -> None:
    path = save_model(tmp_path / "odd.onnx", op="NonMaxSuppression")
    text = mistake(capsys, "tasks", str(path))
    assert "NonMaxSuppression" in text
    assert "first" in text or "'y'" in text


def test_an_open_dimension_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save_model: Callable[..., Path]
) -> None:
    path = save_model(tmp_path / "open.onnx", rows="batch")
    assert "--shape x=" in mistake(capsys, "tasks", str(path))
    assert run(["tasks", str(path), "--shape", "x=8x16"]) == 0


@pytest.mark.parametrize("shape", ["8x16", "x=8xsixteen", "x=8x²", "="])
def test_a_shape_that_does_not_parse(
    model: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "name=1x3x224x224" in mistake(capsys, "tasks", model, "--shape", shape)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("abacus", "known kinds: cuda, llvm"),
        ("cuda -arch=sm_1", "a cuda target has -arch=sm_1; write for instance -arch=sm_90a"),
        ("llvm -mcpu=abacus", "unknown CPU 'abacus'; LLVM's names are meant: znver5, sapp"),
        ("llvm -mcpu=znver6", "unknown CPU 'znver6'; did you mean znver5 or znver4 or znver3? Oth"),
        ("llvm -mcpu=pwr10", "no code is made for CPU 'pwr10'; there is code for x86-64, AArch64"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=haswell", "'haswell' is x86-64, and the triple"),
        ("llvm -mcpu=znver5 -colour=red", "unknown target option -colour"),
        ("llvm -mcpu=znver5 -num-cores=none", "not a whole number from 1 to 4096"),
        ("llvm mcpu", "not of the form -name=value"),
    ],
)
def test_an_unknown_target(
    model: str, target: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = mistake(capsys, "tasks", model, "--target", target)
    assert expected in said
    assert "sim" not in said
    assert len(said) < 160


def test_an_unknown_precision(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "tasks", model, "--precision", "int4")
    assert "precision 'int4' is unknown; known: 'f32', 'tf32', 'bf16', 'fp16'" in said


def test_a_precision_stands_in_the_commands_that_follow(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("--target", "llvm -mcpu=znver5", "--tracker", "127.0.0.1:1")
    asked = Asked(Path(model), target[1], None, "bf16", tracker=target[3])
    with api.apply_history_best(()) as history:
        history.lookup([task.workload for task in asked.tasks()], Target(target[1]))
    assert "--precision bf16" in asked.summary(history)


@pytest.mark.parametrize("command", ["build", "tasks", "records best", "records explain"])
@pytest.mark.parametrize(("processor", "is_narrow"), [("znver3", False), ("znver5", True)])
def test_a_precision_that_changes_nothing_is_told(
    model: str,
    command: str,
    processor: str,
    is_narrow: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [model, "--target", f"llvm -mcpu={processor}", "--precision", "bf16"]
    words += ["-o", str(tmp_path / "m.o")] if command == "build" else []
    assert run([*command.split(), *words]) == 0
    out = "".join(capsys.readouterr())
    told = f"llvm -mcpu={processor} multiplies bfloat16 no faster than float32 in any task of the"
    assert (told in out) == (not is_narrow), out
    assert out.count("changes nothing") == (not is_narrow)
    if "tunefarm tune" in out:  # this machine can measure it
        assert ("--precision bf16" in out.split("tunefarm tune")[1]) == is_narrow


@pytest.mark.parametrize(
    "command",
    [
        "bench --peers --repeat 1",
        "bench --roofline --repeat 2",
        "bench --repeat 2",
        "tune --trials 4",
    ],
)
def test_a_precision_that_changes_nothing_is_told_once(
    command: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """However many builds it takes, in this process and in others."""
    asked = Asked(Path(model), str(Target.host(1)), None, "bf16")
    told = without_effect("bf16", (task.workload for task in asked.tasks()), Target(asked.target))
    name, *options = command.split()
    words = [name, model, *options, "--precision", "bf16", "--target", asked.target]
    assert run([*words, "--db", f"{tmp_path}/records.db"] if name == "tune" else words) == 0
    out = "".join(capfd.readouterr())
    assert out.count("changes nothing") == bool(told)
    if "tunefarm tune" in out:
        assert ("--precision bf16" in out.split("tunefarm tune")[1]) == (not told)


def test_a_folder_that_nobody_made(
    model: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the pen makes no folders; the data folder may be one that is not there yet."""
    folder = tmp_path / "none" / "nested"
    told = mistake(capsys, "tune", model, "--db", str(folder / "x.db"), "--trials", "2")
    wanted = f"database {folder / 'x.db'} cannot be used: {folder} is no folder; make it first"
    assert told.endswith(wanted)
    with pytest.raises(StoreError, match="is no folder; make it first"):
        tunefarm.tune(api.extract_tasks(api.from_onnx(model)), db=str(folder / "x.db"))
    assert not folder.parent.exists()
    assert not home.exists()
    with_folder(api.default_database())
    assert home.is_dir()


def test_no_command_follows_that_cannot_work(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine runs no code for another kind of processor, and finds no such database."""
    foreign = "neoverse-n1" if platform.machine() == "x86_64" else "haswell"
    target = ("--target", f"llvm -mcpu={foreign} -num-cores=4")
    library = tmp_path / "m.o"
    missing, new = tmp_path / "no folder" / "x.db", tmp_path / "new.db"
    for words in (
        ("tasks", model, *target),
        ("build", model, "-o", str(library), *target),
    ):
        assert run(words) == 0
        told = capsys.readouterr().out
        assert "0 tuned, 0 confirmed, 1 default, 0 stale tasks\n" in told
        assert "tune the rest" not in told
    assert run(["tasks", model, "--db", str(missing)]) == 0
    answer = capsys.readouterr()
    assert "cannot be used" in answer.err
    assert "tune the rest" not in answer.out
    assert run(["tasks", model, "--db", str(new)]) == 0
    assert f"tune the rest with: tunefarm tune {model} --db {new}" in capsys.readouterr().out


def test_a_library_whose_name_begins_with_a_digit(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = mistake(capsys, "build", model, "-o", str(tmp_path / "1x.so"))
    assert "name the file so that it begins with a letter, for instance" in said
    assert said.endswith(str(tmp_path / "model_1x.so"))
    assert names_functions(c_prefix(Path("my model.so")))
    assert [c_prefix(Path(f"resnet-1.{n}.so")) for n in (2, 3)] == ["resnet_1_2", "resnet_1_3"]
    assert c_prefix(Path("ünïcode.so")) == "_n_code"
    assert not names_functions(c_prefix(Path("3d.unet.so")))


def test_a_name_with_spaces_is_quoted_in_the_commands_that_follow(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copy(model, tmp_path / "my model.onnx")
    assert run(["tasks", str(path)]) == 0
    assert f"tunefarm tune '{path}'" in capsys.readouterr().out


def test_records_of_the_tasks_of_a_precision(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    zen = ["--target", "llvm -mcpu=znver5"]
    assert run(["records", "best", model, *zen]) == 0
    assert "dot " not in capsys.readouterr().out
    assert run(["records", "best", model, *zen, "--precision", "bf16"]) == 0
    assert "dot " in capsys.readouterr().out


def test_a_tracker_that_is_not_there(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", model, "--tracker", "127.0.0.1:1", "--trials", "1"]) == UNAVAILABLE
    text = capsys.readouterr().err
    assert "no tracker answers at 127.0.0.1:1" in text
    assert "tunefarm tracker" in text


def test_db_and_tracker_exclude_each_other(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = mistake(capsys, "tune", model, "--tracker", "127.0.0.1:1", "--db", "sqlite:///x.db")
    assert "not both" in text


def test_a_corrupt_database(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 500)
    assert "broken.db" in mistake(capsys, "records", "list", "--db", str(broken))
    assert run(["tasks", model, "--db", str(broken)]) == 0
    assert "default configs are used" in capsys.readouterr().err


def test_a_newer_database(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "newer.db"
    Store.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for command in (("records", "list"), ("tune", model, "--trials", "2")):
        text = mistake(capsys, *command, "--db", str(path))
        assert "newer.db" in text
        assert "9999" in text


def test_a_database_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    assert "other.db" in mistake(capsys, "records", "list", "--db", str(path))


def test_a_database_that_another_process_locks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, path = tmp_path / "records.jsonl", tmp_path / "locked.db"
    records.touch()
    Store.open(str(path)).close()
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    assert "locked by another process" in mistake(
        capsys, "records", "import", str(records), "--db", str(path)
    )
    other.close()


def test_names_and_outputs_that_are_no_utf8(model: str, tmp_path: Path) -> None:
    """A file from a system of another encoding, and an output that has no × and no arrows."""
    odd = os.fsencode(tmp_path) + b"/gr\xf6\xdfe.onnx"
    shutil.copy(model, odd)
    database, environment = tmp_path / "t.db", os.environ | {"PYTHONIOENCODING": "ascii"}
    Store.open(str(database)).close()
    for command in (["tasks"], ["build", "-o", str(tmp_path / "m.so")]):
        done = subprocess.run(
            [sys.executable, "-m", "tunefarm", *command, odd, "--db", str(database)],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_full_disk(model: str, tmp_path: Path, home: Path) -> None:
    """A file may grow to 100 kB, no further."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from tunefarm.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "tune", model, "--trials", "2"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(home / "tunefarm.db") in done.stderr


def test_a_data_folder_that_cannot_be_made(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path / "file" / "home"))
    told = mistake(capsys, "tune", model, "--trials", "2")
    assert "cannot make the folder" in told
    assert "name another in TUNEFARM_HOME" in told
    assert run(["tasks", model]) == 0


def test_a_folder_that_cannot_be_written(
    model: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "tunefarm.db.tracker.log").mkdir(parents=True)
    assert "--db FILE or TUNEFARM_HOME" in mistake(capsys, "tune", model, "--trials", "2")


def test_records_that_are_not_there_yet(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tunefarm tune MODEL" in mistake(capsys, "records", "list")
    assert run(["jobs"]) == 0
    assert "no jobs yet" in capsys.readouterr().out
    assert "none.db" in mistake(capsys, "records", "list", "--db", str(tmp_path / "none.db"))


def test_records_of_another_target_are_told_apart(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of a CPU with other code are no records for this one."""
    from tunefarm.compiler.space import config_space
    from tunefarm.db import jsonl
    from tunefarm.db.records import TaskKey, Trial, WorkloadRecord

    from tunefarm import api

    (task,) = api.extract_tasks(api.from_onnx(model), "llvm -mcpu=znver5")
    work = task.workload
    trial = Trial(
        "job", TaskKey(work.key, task.target.text), 0,
        config_space(work, task.target).default, (1e-6,), device_model="Zen 5",
    )  # fmt: skip
    path = tmp_path / "zen.jsonl"
    with path.open("w") as file:
        text = WorkloadRecord(work.key, work.text, work.summary, work.flops)
        jsonl.write(file, [text], [trial])
    database = str(tmp_path / "zen.db")
    assert run(["records", "import", str(path), "--db", database]) == 0
    assert "added 1 trial, 0 were known; llvm -mcpu=znver5" in capsys.readouterr().out
    host = ("--target", "llvm -mcpu=haswell")
    assert run(["records", "explain", model, "--db", database, *host]) == 0
    assert capsys.readouterr().out.startswith("default ")
    assert run(["records", "list", "--db", database, *host]) == 0
    assert "no trials of llvm -mcpu=haswell" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["build", "export"])
def test_an_output_that_is_a_folder(
    model: str, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"build": ("build", model, "-o"), "export": ("records", "export")}[command]
    assert "is a folder" in mistake(capsys, *arguments, str(tmp_path))


@pytest.mark.parametrize("arguments", [("--trials", "0"), ("--minutes", "-1")])
def test_a_budget_that_makes_no_sense(
    model: str, arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert arguments[0] in mistake(capsys, "tune", model, *arguments)


def test_a_shape_that_does_not_fit(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "(8, 16)" in mistake(capsys, "tasks", model, "--shape", "x=9x16x2")
    assert "its inputs are x" in mistake(capsys, "tasks", model, "--shape", "y=9x16")


def test_an_output_that_cannot_be_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "nowhere" / "model.so"
    assert run(["build", model, "-o", str(place)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_import_goes_on_past_broken_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunefarm.db import jsonl
    from tunefarm.db.records import TaskKey, Trial

    path = tmp_path / "records.jsonl"
    trial = jsonl.dump(Trial("job", TaskKey("0" * 64, "llvm"), 0, {}, (1e-3,)))
    path.write_text("{}\nnot json\n" + trial)
    database = tmp_path / "new.db"
    assert run(["records", "import", str(path), "--db", f"sqlite:///{database}"]) == 0
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 2
    assert "added 1 trial," in captured.out


def test_an_import_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    text = mistake(capsys, "records", "import", model, "--db", str(tmp_path / "new.db"))
    assert "model.onnx holds no records" in text
    assert "not JSON" in text
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    text = mistake(capsys, "records", "import", str(empty), "--db", str(tmp_path / "new.db"))
    assert "empty.jsonl holds no trials" in text


def test_a_database_that_is_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert run(["tasks", model, "--db", model]) == 0
    errors = capsys.readouterr().err
    assert errors.count("model.onnx is not a SQLite database") == 1
    output = str(tmp_path / "m.so")
    text = mistake(capsys, "build", model, "-o", output, "--db", model, "--strict")
    assert "is not a SQLite database" in text


def test_an_unknown_option(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--colour" in mistake(capsys, "tasks", model, "--colour", "red")


def test_a_setting_that_does_not_parse(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_NUM_THREADS", "many")
    text = mistake(capsys, "build", model, "-o", str(tmp_path / "m.so"), "--db", "")
    assert "TUNEFARM_NUM_THREADS" in text


def test_a_model_is_built_and_runs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tunefarm

    library = tmp_path / "model.so"
    assert run(["build", model, "-o", str(library)]) == 0
    told = capsys.readouterr().out
    assert "tunefarm tune" in told
    lanes = tunefarm.Target.host(1).lanes("float32")
    weights = size(16 * -(-24 // lanes) * lanes * 4)  # panels of whole vectors
    assert f"{weights} of weights, 0 bytes of memory a run at its peak" in told
    x = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
    outputs = tunefarm.load_module(library).run({"x": x})
    np.testing.assert_allclose(outputs["y"], x @ np.ones((16, 24), "float32"), rtol=1e-5, atol=1e-5)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tunefarm ")


@pytest.mark.parametrize("name", ["records.sqlite3", "records.jsonl"])
def test_every_command_reads_the_file_of_db_as_a_database(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    path = tmp_path / name
    Store.open(str(path)).close()
    for command in (("tasks",), ("records", "explain"), ("records", "best")):
        assert run([*command, model, "--db", str(path)]) == 0
        assert capsys.readouterr().err == ""
    missing = str(tmp_path / f"no {name}")
    assert run(["tasks", model, "--db", missing]) == 0
    assert f"there is no database {missing} yet" in capsys.readouterr().err


def test_help_names_what_an_option_takes(capsys: pytest.CaptureFixture[str]) -> None:
    single = "tune build bench tasks tracker worker tuner devices submit jobs watch cancel"
    records = [["records", name] for name in ("list", "best", "explain", "export", "import")]
    for command in [[name] for name in single.split()] + records:
        assert run([*command, "--help"]) == 0
        text = capsys.readouterr().out
        options = text.split("Options:\n")[1].splitlines()
        assert options
        assert [line for line in options if re.search(r"<\w+>", line)] == [], command
        assert ("[default: 64 a task]" in " ".join(text.split())) == (
            command in (["tune"], ["submit"])
        )


@pytest.mark.parametrize("command", ["best", "explain"])
def test_records_of_a_farm_are_asked_of_its_tracker(
    model: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["records", command, model, "--tracker", "127.0.0.1:1"]) == 0
    captured = capsys.readouterr()
    assert "no tracker answers at 127.0.0.1:1" in captured.err
    assert captured.out.startswith("default ")


def test_an_explanation_breaks_between_words_on_a_terminal_alone(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = []
    for is_terminal in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", is_terminal)
        assert run(["records", "explain", model, "--tracker", "127.0.0.1:1"]) == 0
        shown.append(capsys.readouterr().out)
    whole, broken = shown
    assert len(whole.splitlines()) == 1 < len(broken.splitlines())
    assert max(map(len, broken.splitlines())) <= 40
    assert broken.split() == whole.split()


@pytest.mark.parametrize("name", ["mm.txt", "mm", "mm.so.1"])
def test_a_library_that_is_not_called_one(
    model: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not end in .so" in mistake(capsys, "build", model, "-o", str(tmp_path / name))
    told = mistake(capsys, "build", model, "-o", str(tmp_path / ".so"))
    assert told.rstrip().endswith(
        f"is an ending without a name; write for instance {tmp_path}/model.so"
    )
    assert not (tmp_path / name).exists()


def test_one_trial_is_counted_as_one_and_listed_without_blanks_at_the_end(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunefarm.compiler.space import config_space
    from tunefarm.db.records import TaskKey, Trial, WorkloadRecord

    from tunefarm import api

    (task,) = api.extract_tasks(api.from_onnx(model))
    key = TaskKey(task.workload.key, task.target.text)
    config = config_space(task.workload, task.target).default
    database, file = str(tmp_path / "one.db"), str(tmp_path / "one.jsonl")
    with Store.open(database) as store:
        store.add_workloads([WorkloadRecord(task.workload.key, task.workload.text)])
        store.add_trials([Trial("j", key, 0, config, (1e-6,), device_model="m")])
    assert run(["records", "export", file, "--db", database]) == 0
    assert capsys.readouterr().out.startswith("wrote 1 trial to ")
    assert run(["records", "import", file, "--db", database]) == 0
    assert capsys.readouterr().out.startswith("added 0 trials, 1 was known")
    with Store.open(database) as store:
        store.add_trials([Trial("j", key, 1, {"sketch": "s"}, (1e-6,), device_model="m")])
    assert run(["records", "list", "--db", database]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert len(lines) == 4


@pytest.mark.parametrize("command", ["best", "explain"])
def test_records_of_a_database_that_is_not_there(
    model: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent.db")
    told = mistake(capsys, "records", command, model, "--db", absent)
    assert f"there is no database {absent} yet" in told


@pytest.mark.parametrize("command", ["tasks", "bench"])
def test_records_come_from_one_place(
    model: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = mistake(capsys, command, model, "--db", "a.db", "--tracker", "localhost:1")
    assert "--tracker (a running farm) or --db (a database), not both" in told

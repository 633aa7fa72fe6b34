"""What all commands have in common: help with an example, JSON as documented, quiet and verbose."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.target import Target
from tunefarm.db import cordons, jobs, leases
from tunefarm.db.farm_models import LEASES
from tunefarm.db.records import FINAL, Device, ErrorKind, TaskKey, Trial
from tunefarm.db.store import Store

import tunefarm
from tunefarm.cli.app import root, run
from tunefarm.cli.bench import race_json
from tunefarm.cli.briefs import BRIEFS, SECTIONS
from tunefarm.cli.printing import plain
from tunefarm.peers.race import Race
from tunefarm.peers.rows import Row
from tunefarm.tuning import make_job

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
TARGET = "llvm -mcpu=znver5 -num-cores=64"  # no machine of a test: what it tunes itself starts anew


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands by name, also groups that are commands themselves."""
    for name, command in (group or root()).commands.items():
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield " ".join([*words, name]), command
        if inner is not None:
            yield from commands(command, (*words, name))


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert "-q, --quiet" in told
    assert "-v, --verbose" in told
    text = COMMANDS[name].help or COMMANDS[name].callback.__doc__
    example = re.search(r"Example: (.+)", text)
    assert example is not None, f"{name} has no example"
    if not example[1].startswith("tunefarm "):
        return
    words = shlex.split(example[1])[1:]
    context = root().make_context("tunefarm", words[:1], resilient_parsing=True)
    command, rest = root(), words
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    assert command is COMMANDS[name]
    context = command.make_context(name, rest, resilient_parsing=True)
    assert not [word for word in context.args if word.startswith("-")]
    known = {text for option in command.params for text in getattr(option, "opts", ())}
    assert {word for word in rest if word.startswith("-")} <= known


def groups(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of all groups of commands."""
    yield words
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, (*words, name))


@pytest.mark.parametrize("words", list(groups(root())), ids=" ".join)
def test_lists_of_commands_say_of_each_what_it_does(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words, "--help"]) == 0
    _, listed = capsys.readouterr().out.split("Show this message and exit.\n")
    for name, told in re.findall(r"^  (\S+) +(.+)$", listed, re.M):
        assert told == BRIEFS[" ".join([*words, name])], "cut off, or not as it is written"


def test_the_help_lists_each_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(itertools.chain(*SECTIONS.values())) == sorted(root().commands)
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Usage: tunefarm [OPTIONS]")
    assert [line.rstrip(":") for line in told.splitlines() if line.endswith(":")][1:] == [*SECTIONS]


@pytest.mark.parametrize("words", [[], ["records"], ["token"], ["db"], ["farm"], ["config"]])
def test_a_group_alone_tells_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("Usage: tunefarm ")
    assert "Example: tunefarm" in told or not words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tune", "missing argument 'MODEL'; see `tunefarm tune --help`"),
        ("dashbord", "no such command 'dashbord'. Did you mean 'dashboard'?"),
        ("records lst", "no such command 'lst'. Did you mean 'list'?"),
        ("build m.onnx", "missing option '-o' / '--output'; see `tunefarm build --help`"),
        (
            "records list --token-file t",
            "--token-file stands before the command: tunefarm --token-file … records list",
        ),
        (
            "jobs --limit x",
            "tunefarm: invalid value for '--limit': it should be a valid integer; see",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence_with_what_helps(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert sentence in capsys.readouterr().err


# --- JSON ---------------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, list[str]]]:
    """What the page says of each command: list or object, and its keys in order."""
    found: dict[str, tuple[str, list[str]]] = {}
    for names, kind, keys in re.findall(
        r"^\| (.+?) \| (list|object)([^|]*)\|$", PAGE.read_text(), re.M
    ):
        if names.startswith("…"):
            found["its tasks"] = (kind, re.findall(r"`(\w+)`", keys))
            continue
        listed = re.findall(r"`([\w ]+)`", keys.partition(":")[2])
        for name in re.findall(r"`([\w -]+)`", names):
            found[name] = (kind, listed)
    _, job = found["jobs"]
    _, token = found["token list"]
    _, tune = found["tune"]
    found["submit"] = ("object", job)
    found["watch"] = ("object", [key for key in tune if key not in ("closing", "others_share")])
    found["token create"] = ("object", [*token, "secret"])
    found["farm top"] = ("object", found["farm top"][1][:-3])
    return found


DOCUMENTED = documented()


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) in (0, 3)
    return json.loads(capsys.readouterr().out)


def check(name: str, answer: Any) -> Mapping[str, Any]:
    """An answer has what is documented; its first object."""
    kind, keys = DOCUMENTED[name]
    assert isinstance(answer, list if kind == "list" else dict)
    assert answer, f"nothing to check of {name}"
    first = answer[0] if kind == "list" else answer
    assert list(first) == keys, name
    return first  # type: ignore[no-any-return]


@pytest.fixture
def database(tmp_path: Path, model: str) -> str:
    """A database with a job that was cancelled (a default, a failed trial, a final), and with a
    device that was leased and is cordoned."""
    path = str(tmp_path / "farm.db")
    tasks = tunefarm.extract_tasks(tunefarm.from_onnx(model), TARGET)
    made = replace(make_job(tasks, 50), id="aaaa1111")
    key = TaskKey(made.tasks[0].workload.key, TARGET)
    device = Device("llvm-1", "llvm", "Some CPU", TARGET, "lab-1", peaks={"flops_n": 1e11})
    first = Trial("aaaa1111", key, 0, {"sketch": "plain"}, (2e-3,), origin="default")
    with Store.open(path) as store:
        with store.writing() as db:
            leases.enlist(db, "lab-1", "one", "0.1.0+abc")
            leases.register(db, "lab-1", [device])
            db.execute(insert(LEASES).values(LEASE))
            cordons.cordon(db, "c1", "llvm-1", actor="anna", reason="new fans")
            jobs.submit(db, made)
        failed = replace(first, number=1, times_s=(), error=ErrorKind.RUN_ERROR, message="no")
        store.add_trials([first, failed, replace(first, number=2, origin=FINAL)])
        with store.writing() as db:
            jobs.cancel(db, "aaaa1111", "enough")
    return path


LEASE = {
    "id": "lease1", "request_id": "r1", "device": "llvm-1", "client": "tuner-1", "job": "aaaa1111",
    "epoch": 1, "term_s": 10.0, "granted_at": 100.0, "ended_at": 200.0, "ended_reason": "over",
}  # fmt: skip


def test_answers_of_a_database_are_as_documented(
    database: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = partial(told, capsys)
    db, file, copy = ("--db", database), str(tmp_path / "all.jsonl"), str(tmp_path / "copy.db")
    tuned = check("watch", ask("watch", "aaaa", *db))
    assert (tuned["trials"], tuned["finals"], tuned["state"]) == (2, 1, "cancelled")
    assert check("its tasks", tuned["tasks"])["failed"] == 1
    assert check("jobs", ask("jobs", *db))["message"] == "enough"
    assert check("records list", ask("records", "list", *db))["latency_s"] == 2e-3
    assert ask("records", "list", "--failed", *db)[0]["latency_s"] is None
    assert check("tasks", ask("tasks", model, "--target", TARGET, *db))["failed"] == 1
    for name in ("best", "explain"):
        found = ask("records", name, model, "--target", TARGET, *db)
        assert check(f"records {name}", found)["status"] == "stale"
    assert check("records export", ask("records", "export", file, *db))["trials"] == 3
    assert check("records import", ask("records", "import", file, *db))["known"] == 3
    assert check("db backup", ask("db", "backup", copy, *db))["bytes"] > 0
    assert check("db check", ask("db", "check", copy))["file"] == copy
    assert check("db restore", ask("db", "restore", copy, "--db", f"{copy}.2"))["file"] == copy
    assert check("db upgrade", ask("db", "upgrade", *db))["database"].endswith("farm.db")
    assert check("db prune", ask("db", "prune", "--keep", "1", "--dry-run", *db))["dry_run"]
    assert check("config show", ask("config", "show"))["name"]


def test_answers_of_a_farm_are_as_documented(
    database: str,
    model: str,
    tmp_path: Path,
    tracker: Callable[[Path], AbstractContextManager[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask = partial(told, capsys)
    with tracker(Path(database)) as place:
        farm = ("--tracker", place)
        assert check("devices", ask("devices", *farm))["cordon_reason"] == "new fans, by anna"
        assert check("devices history", ask("devices", "history", *farm))["actor"] == "anna"
        assert check("leases", ask("leases", "--history", *farm))["ended_at"] == 200.0
        words = ("token", "create", "ben", "--role", "client", *farm)
        assert check("token create", ask(*words))["secret"]
        assert check("token list", ask("token", "list", *farm))["name"] == "ben"
        assert check("jobs retry", ask("jobs", "retry", "aaaa", *farm))["state"] == "queued"
        noted = ask("jobs", "note", "aaaa", "on a quiet machine", *farm)
        assert check("jobs note", noted)["note"] == "on a quiet machine"
        assert check("cancel", ask("cancel", "aaaa", *farm))["before"] == "queued"
        submitted = ask("submit", model, "--target", TARGET, "--trials", "3", *farm)
        assert check("submit", submitted)["budget_trials"] == 3
        seen = check("farm top", ask("farm", "top", *farm))
        assert list(seen["jobs"][0]) == [*DOCUMENTED["jobs"][1], "trials", "pending"]
        library = str(tmp_path / "m.so")
        words = ("build", model, "-o", library, "--target", TARGET, "--report-misses", *farm)
        assert check("build", ask(*words))["library"] == library
        assert check("misses", ask("misses", *farm))["weight"] == 1


def test_answers_of_this_machine_are_as_documented(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = ("--db", str(tmp_path / "own.db"))
    assert check("doctor", told(capsys, "doctor", *db))["subject"] == "software"
    tuned = check("tune", told(capsys, "tune", model, "--trials", "2", "--no-closing", *db))
    assert (tuned["state"], tuned["closing"], tuned["trials"]) == ("succeeded", None, 2)
    assert 0 <= tuned["others_share"] <= 1
    again = check("tune", told(capsys, "tune", model, "--trials", "2", *db))
    assert (again["job"], again["earlier"]) == (None, 2)
    timed = check("bench", told(capsys, "bench", model, "--repeat", "2", *db))
    assert timed["nodes"][0]["default_s"] > 0
    roofs = told(capsys, "bench", model, "--roofline", "--repeat", "2", *db)
    assert check("bench --roofline", roofs)["nodes"][0]["bound"]


def test_tune_tells_of_a_busy_machine(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as rivals:
        for _ in range(1 + (os.cpu_count() or 1) // 4):
            rival = rivals.enter_context(subprocess.Popen(spin))
            rivals.callback(rival.kill)
        assert run(["tune", model, "--trials", "2", "--db", str(tmp_path / "own.db")]) == 0
    *_, told, following = capsys.readouterr().out.splitlines()
    assert re.match(r"other processes took \d\d% of this machine meanwhile: ", told)
    assert following.startswith("next: tunefarm build")


def test_answers_of_a_race_are_as_documented() -> None:
    row = Row(
        "m", {"tuned": 1e-3, "onnxruntime": 2e-3}, 10, 1e9, {"tuned": 0.0, "onnxruntime": 0.0}
    )
    made = Race(2, row, "onnxruntime", History(None, ""), {})
    check("bench --peers", [race_json(Target(TARGET), made)])


def test_every_answer_that_is_documented_was_checked() -> None:
    text = Path(__file__).read_text()
    unchecked = [name for name in DOCUMENTED if f'check("{name}"' not in text]
    assert unchecked == ["records best", "records explain"]  # in a loop
    with_json = {name for name, command in COMMANDS.items() if _has(command, "--json")}
    assert with_json == {name.partition(" --")[0] for name in DOCUMENTED} - {"its tasks"}


def _has(command: Any, option: str) -> bool:
    return any(option in getattr(parameter, "opts", ()) for parameter in command.params)


def test_what_is_no_number_is_null() -> None:
    assert plain({"a": float("inf"), "b": (1, None), "c": Path("x")}) == {
        "a": None, "b": [1, None], "c": "x",
    }  # fmt: skip
    with pytest.raises(TypeError, match="object has no form in JSON"):
        plain(object())


# --- quiet, verbose, and places to print to -------------------------------------------------------


def test_quiet_commands_print_answers_alone(
    database: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = ("--db", database)
    assert run(["-q", "records", "export", str(tmp_path / "a.jsonl"), *db]) == 0
    assert run(["db", "-q", "backup", str(tmp_path / "b.db"), *db]) == 0
    assert run(["build", model, "-o", str(tmp_path / "m.so"), "-q", *db]) == 0
    assert capsys.readouterr().out == ""
    assert run(["tasks", model, "-q", *db]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("task")
    assert run(["tune", model, "-q", "--trials", "1", "--no-closing", *db]) == 0
    shortage = "1 task had no candidates timed, only the default: more trials would search it"
    assert re.fullmatch(rf"1 trial; all tasks: .*\n{shortage}\n", capsys.readouterr().out)
    assert run(["records", "list", "--limit", "1", *db]) == 0
    assert capsys.readouterr().out


def test_verbose_commands_show_where_an_error_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = logging.getLogger("tunefarm")  # what --verbose sets up is for this process to its end
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(ours, "level", ours.level)
    assert run(["tasks", "none.onnx"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert run(["tasks", "none.onnx", "-v"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("tunefarm: none.onnx")


def test_a_verbose_tune_shows_the_log_of_its_farm(model: str, tmp_path: Path) -> None:
    words = ["tune", model, "--trials", "2", "--no-closing", "--db", str(tmp_path / "own.db")]
    done = subprocess.run(
        [sys.executable, "-m", "tunefarm", *words, "-v"],
        capture_output=True,
        text=True,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "40"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"DEBUG embedded: tuner: .*claimed: 1 tasks, 2 trials", done.stderr)
    assert "DEBUG" not in done.stdout
    assert "\x1b" not in done.stdout  # a terminal that can nothing gets lines


def test_a_command_works_where_nothing_is_open(model: str, tmp_path: Path) -> None:
    command = " ".join(map(shlex.quote, [sys.executable, "-m", "tunefarm"]))
    tune = f"{command} tune {model} --trials 2 --no-closing --db {tmp_path / 'own.db'}"
    done = subprocess.run(f"{tune} >&- 2>&- <&-", shell=True)
    assert done.returncode == 0


def test_a_tune_fits_a_narrow_terminal(model: str, tmp_path: Path) -> None:
    database = str(tmp_path / "own.db")
    words = ["tune", model, "--trials", "3", "--no-closing", "--db", database]
    shown, status = on_terminal([sys.executable, "-m", "tunefarm", *words], 40)
    assert status == 0, shown
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split("\r?\n|\r", shown)]
    drawn = [line for line in lines if "/3 trials" in line or line.startswith("matmul")]
    assert drawn
    assert max(map(len, drawn)) <= 40


def on_terminal(command: list[str], columns: int) -> tuple[str, int]:
    """What a command writes to a terminal of this width, and its exit code."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"} | {"COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with its last writer
        while piece := os.read(reader, 4096):
            shown += piece
    os.close(reader)
    return shown.decode(errors="replace"), process.wait()

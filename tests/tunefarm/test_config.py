"""Defaults of options: from a file and the environment, the nearest first, and who said what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tunefarm.compiler import settings
from tunefarm.compiler.settings import SettingError

from tunefarm.cli.app import UNAVAILABLE, commands, run
from tunefarm.cli.config import defaults_for

SAID = """
[settings]
cache_bytes = 4096
[defaults]
tracker = "127.0.0.1:1"
[tune]
trials = 5
shape = "x=1x3"
closing = false
[devices.drain]
minutes = 5
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(SAID)
    monkeypatch.setenv("TUNEFARM_CONFIG", str(path))
    monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path))
    monkeypatch.delenv("TUNEFARM_CACHE_BYTES", raising=False)
    return path


def given(*arguments: str) -> dict[str, Any]:
    return defaults_for(commands(), arguments)


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert run(["config", "show", "--json"]) == 0
    return {r["name"]: (r["value"], r["source"]) for r in json.loads(capsys.readouterr().out)}


def test_the_file_gives_options_their_values(file: Path) -> None:
    assert given()["tune"] == {
        "trials": 5, "shape": ["x=1x3"], "closing": False, "tracker": "127.0.0.1:1",
    }  # fmt: skip
    assert given()["devices"]["drain"]["minutes"] == 5
    assert given()["devices"]["tracker"] == "127.0.0.1:1"  # of `devices` itself


def test_the_environment_comes_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_TRACKER", "lab:1")
    monkeypatch.setenv("TUNEFARM_TUNE_TRIALS", "7")
    monkeypatch.setenv("TUNEFARM_TUNE_TRACKER", "own:1")
    assert given()["tune"]["trials"] == "7"
    assert given()["tune"]["tracker"] == "own:1"
    assert given()["submit"]["tracker"] == "lab:1"


def test_what_is_typed_pushes_out_what_it_excludes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "tracker" not in given("jobs", "--db", "x.db").get("jobs", {})
    assert "tracker" not in given("worker", "--rendezvous=x").get("worker", {})
    monkeypatch.setenv("TUNEFARM_DB", "mine.db")
    assert given()["jobs"] == {"db": "mine.db"} | {
        k: v for k, v in given()["jobs"].items() if isinstance(v, dict)
    }


def test_commands_take_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs"]) == UNAVAILABLE
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run(["jobs", "--db", str(file.with_name("none.db"))]) == 2
    assert "there is no database" in capsys.readouterr().err


def test_each_value_says_where_it_comes_from(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_TUNE_TRIALS", "7")
    monkeypatch.setenv("TUNEFARM_TRAKER", "lab:1")
    monkeypatch.setenv("TUNEFARM_TOKEN", "a secret")
    found = shown(capsys)
    assert found["TUNEFARM_CACHE_BYTES"] == ("4096", f"{file} [settings] cache_bytes")
    assert found["TUNEFARM_VERIFY_LLVM"] == ("1", "default")
    assert found["TUNEFARM_TOKEN"] == ("***", "TUNEFARM_TOKEN")
    assert found["tune --trials"] == ("7", "TUNEFARM_TUNE_TRIALS")
    assert found["… --tracker"] == ("127.0.0.1:1", f"{file} [defaults] tracker")
    assert "no option" in found["TUNEFARM_TRAKER"][1]
    assert settings.CACHE_BYTES.get() == 4096
    assert run(["config", "show"]) == 0
    assert "[devices.drain] minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tune]\ntrails = 5", "[tune] trails: tune has no option --trails; did you mean trials?"),
        ("[tuen]\ntrials = 5", "[tuen] is no command; did you mean tune?"),
        ("[defaults]\ntrails = 5", "no command has an option --trails"),
        ("[tune]\ntrials = 'x'", "[tune] trials: invalid value for '--trials'"),
        ("[tune]\ntrials = 0", "[tune] trials: invalid value for '--trials'"),
        ("[settings]\ncash = 1", "[settings] has no 'cash'; it may hold home, "),
        ("settings = 1", "settings is a section"),
        ("[tune", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    file: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file.with_name("other.toml")
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNEFARM_CONFIG", str(path))
        assert run(["jobs"]) == 2
        errors = capsys.readouterr().err
        assert sentence in errors
        assert str(path) in errors
        assert len(errors.splitlines()) == 1
        assert run(["config", "path"]) == 0  # what edits the file works all the same
        assert capsys.readouterr().out.strip() == str(path)
        assert run(["tune", "--help"]) == 0


def test_a_setting_of_the_file_that_cannot_be_understood(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file.with_name("other.toml")
    path.write_text("[settings]\nnum_threads = 0")
    monkeypatch.setenv("TUNEFARM_CONFIG", str(path))
    monkeypatch.delenv("TUNEFARM_NUM_THREADS", raising=False)
    with pytest.raises(SettingError, match=r"\[settings\] num_threads='0': expected a positive"):
        settings.NUM_THREADS.get()


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("TUNEFARM_GPU_SANDBOX", "", "landlock+seccomp"),
        ("TUNEFARM_GPU_SANDBOX", "none", "none"),
        ("TUNEFARM_GPU_SANDBOX", "seccomp", "seccomp"),
        ("TUNEFARM_VERIFY", "", "0"),
        ("TUNEFARM_VERIFY", "on", "1"),
        ("TUNEFARM_DUMP", "", ""),
        ("TUNEFARM_CUDA", "emulated:2", "emulated:2"),
    ],
)
def test_settings_are_shown_as_one_would_write_them(
    name: str,
    said: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, said)
    assert shown(capsys)[name][0] == told
    setting = next(one for one in settings.SETTINGS if one.name == name)
    assert not told or setting.parse(told) == setting.get()


def test_shells_complete_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        environment = os.environ | {
            "_TUNEFARM_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        command = [str(Path(sys.executable).with_name("tunefarm"))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return done.stdout.split()

    assert completed("tunefarm rec") == ["records"]
    assert completed("tunefarm tune --tr") == ["--trials", "--tracker"]

"""What docs/operations.md tells an operator to type exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tunefarm.cli.app import run

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
COMMANDS = sorted(
    set(re.findall(r"`(tunefarm [^`]+)`", PAGE))
    | set(re.findall(r"^(?:\w+\$ )?(tunefarm [^#&\n]+)", PAGE, re.M))
)
GROUPS = {
    "devices": ("cordon", "drain", "uncordon", "check", "lift", "history"),
    "leases": ("revoke",),
    "token": ("create", "list", "revoke"),
    "jobs": ("retry",),
    "db": ("backup", "check", "restore", "prune"),
    "farm": ("top",),
    "records": ("export", "import"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_options_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, name, *rest = shlex.split(command)
    path = [name, *rest[:1]] if rest and rest[0] in GROUPS.get(name, ()) else [name]
    assert run([*path, "--help"]) == 0
    told = capsys.readouterr().out
    for word in rest:
        assert not word.startswith("--") or re.search(rf"^ +{word} ", told, re.M), word


def test_the_page_tells_of_every_command_for_operators() -> None:
    told = " ".join(COMMANDS)
    for name, subcommands in GROUPS.items():
        for subcommand in subcommands:
            assert f"tunefarm {name} {subcommand}" in told

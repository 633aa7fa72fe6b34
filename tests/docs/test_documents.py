"""The pages under docs/ do what they say: their blocks run, and print what the pages show."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tunefarm

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = Path(__file__).with_name("blocks.py")
PAGES = {
    "getting-started": 5,  # one a task: no challengers, so the finals are over at once
    "tuning": 6,
    "how-it-works": 0,
    "adding-an-operator": 5,
    "adding-a-sketch": 6,
    "adding-a-target": 25,  # a simulator's
    "coming-from-tvm": 0,
    "gpu": 0,
}
"""The pages whose blocks run, and how many trials their tunings get."""

_spec = importlib.util.spec_from_file_location("blocks", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
blocks = importlib.util.module_from_spec(_spec)
sys.modules["blocks"] = blocks
_spec.loader.exec_module(blocks)


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    page = DOCS / f"{name}.md"
    text = page.read_text()
    if "\ncc " in text and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    outputs = outputs_of(page, tmp_path, PAGES[name])
    found = blocks.blocks_of(text)
    assert len(outputs) == len(found) > 0
    wrong = [
        (block, printed)
        for block, printed in zip(found, outputs, strict=True)
        if block.shown and not blocks.agrees(text[slice(*block.shown)], printed, block.varies)
    ]
    if wrong and pytestconfig.getoption("--update-golden"):
        for block, printed in reversed(wrong):
            begin, end = block.shown
            now = printed.strip("\n")
            text = f"{text[:begin]}{now}\n{text[end:]}"
        page.write_text(text)
        return
    told = [f"{page.name}:{b.line} printed\n{printed}" for b, printed in wrong]
    assert not wrong, "\n".join(told) + "\n--update-golden writes it into the page"


def outputs_of(page: Path, folder: Path, trials: int) -> list[str]:
    """What each block prints in a process of its own, in an empty folder, with empty records."""
    work, answer = folder / "work", folder / "answer.json"
    work.mkdir()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TUNEFARM_HOME": str(folder / "home"),
        "TUNEFARM_CACHE": str(folder / "cache"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    environment.pop("TUNEFARM_VERIFY", None)
    done = subprocess.run(
        [sys.executable, SCRIPT, page, str(trials), answer],
        cwd=work, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
    assert answer.exists(), done.stdout
    told = json.loads(answer.read_text())
    assert "error" not in told, f"{told['error']}\n{done.stdout}"
    return told["outputs"]


def test_every_page_with_blocks_is_run() -> None:
    with_blocks = {p.stem for p in DOCS.glob("*.md") if blocks.blocks_of(p.read_text())}
    assert with_blocks == set(PAGES)


def test_outputs_that_differ_are_found() -> None:
    assert blocks.agrees("a  1\n…\nz …", "a 1\nb\nc\nz 17 ms", varies=False)
    assert blocks.agrees("took 1.5 ms", "took 20 ms", varies=True)
    assert not blocks.agrees("took 1.5 ms", "took 20 ms", varies=False)
    assert not blocks.agrees("a\n…\nz", "a\nb\ny", varies=False)
    assert not blocks.agrees("a", "a\nb", varies=True)


def test_the_reference_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text()
    told = set(re.findall(r"^::: tunefarm\.(\w+)$", page, re.M))
    assert told == set(tunefarm.__all__) - {"__version__"}


def names_of_ours() -> list[str]:
    """What the table of names says is ours and stands in a module: ``tunefarm.a.b``."""
    page = (DOCS / "coming-from-tvm.md").read_text()
    return sorted(set(re.findall(r"`(tunefarm(?:\.\w+)+)", page)))


@pytest.mark.parametrize("name", names_of_ours())
def test_a_name_of_ours_exists(name: str) -> None:
    module, parts = tunefarm, name.split(".")[1:]
    for i, part in enumerate(parts):
        if not hasattr(module, part):
            importlib.import_module(".".join(["tunefarm", *parts[: i + 1]]))
        module = getattr(module, part)

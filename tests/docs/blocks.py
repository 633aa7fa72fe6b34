"""The blocks of a page, and a child process that runs them in order.

A ``python`` block runs in the page's process, a ``sh`` block in bash, and one with a ``title``
is written to the file of that name. A ``text`` block right behind a block that ran is what it
prints; in it ``…`` stands for any text, and a line ``…`` for any lines. Behind the comment
``<!-- numbers vary -->`` any number of it stands for any other, and any processor. Behind another
comment, or words, it is an example and not compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```\n", re.M | re.S)
VARY = "<!-- numbers vary -->"
RUN = ("python", "sh")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``shown`` is the span in the page of the output behind it, if there is."""

    language: str
    title: str
    text: str
    line: int
    shown: tuple[int, int] | None = None
    varies: bool = False


def blocks_of(page: str) -> list[Block]:
    """The blocks that are run or written, with the output that the page shows for them."""
    matches = list(BLOCK.finditer(page))
    found = []
    for i, match in enumerate(matches):
        language, title, text = match[1], match[2] or "", match[3]
        if not title and language not in RUN:
            continue
        shown, varies = None, False
        if not title and i + 1 < len(matches) and matches[i + 1][1] == "text":
            between = page[match.end() : matches[i + 1].start()].strip()
            if between in ("", VARY):
                shown, varies = matches[i + 1].span(3), between == VARY
        found.append(
            Block(language, title, text, page[: match.start()].count("\n") + 1, shown, varies)
        )
    return found


def agrees(shown: str, printed: str, varies: bool) -> bool:
    """Whether what a page shows stands for what came out; runs of spaces count as one."""
    lines = []
    for line in shown.strip().splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        pattern = re.escape(" ".join(line.split())).replace("…", ".*")
        if varies:
            # A virtual machine may lack features of its processor, which the target then names.
            pattern = re.sub(r"\\-mcpu=[\w\\-]+", r"(?:-mattr=\\S+ )?-mcpu=\\S+", pattern)
            pattern = re.sub(r"\d+(?:\\\.\d+)?", r"\\d+(?:\\.\\d+)?", pattern)
        lines.append(f"{pattern}\n")
    text = "".join(f"{' '.join(line.split())}\n" for line in printed.strip().splitlines())
    return re.fullmatch("".join(lines), text) is not None


CHEAPER = (
    (r"(\btrials=|--trials )\d+", r"\g<1>{trials}"),
    (r"^(tunefarm bench \S+)", r"\1 --repeat 2"),
    (r"^tunefarm doctor$", r"tunefarm doctor || test $? = 3  # a test's machine is never quiet"),
)


def cheap(text: str, trials: int) -> str:
    """The block with so few trials and repeats that a test can wait for it."""
    for pattern, instead in CHEAPER:
        text = re.sub(pattern, instead.replace("{trials}", str(trials)), text, flags=re.M)
    return text


def run(page: Path, trials: int) -> list[str]:
    """What each block of the page prints, in the present folder; raises what a block raises."""
    names: dict[str, object] = {"__name__": "__main__"}
    outputs = []
    for block in blocks_of(page.read_text()):
        text = cheap(block.text, trials)
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(text)
            outputs.append("")
        elif block.language == "python":
            outputs.append(_run_python(text, names, f"{page.name}:{block.line}"))
        else:
            outputs.append(_run_shell(text, f"{page.name}:{block.line}"))
    return outputs


def _run_python(text: str, names: dict[str, object], place: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, place, "exec"), names)
    return printed.getvalue()


def _run_shell(text: str, place: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{place}: exit code {done.returncode}\n{text}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.path.insert(0, "")
    try:
        answer: dict[str, object] = {"outputs": run(Path(sys.argv[1]), int(sys.argv[2]))}
    except Exception:
        answer = {"error": traceback.format_exc()}
    Path(sys.argv[3]).write_text(json.dumps(answer))

"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import TRIALS_A_TASK

if TYPE_CHECKING:
    from rich.console import Console

    from tunefarm.compiler.dispatch import History
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.workload import Task, Workload
    from tunefarm.db.records import Trial

TRACKER_HELP = "HOST:PORT of a tracker, or the file it wrote; by default your own database's."
DATABASE_HELP = "Database URL or SQLite file; the one in your data folder if empty."
FARM_HELP = "HOST:PORT of a running farm, or the file its tracker wrote."

DATABASE = "URL|FILE"
FILE = "FILE"
TARGET = "TARGET"
TRACKER = "HOST:PORT|FILE"

Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="ONNX file, or torch.export's .pt2.", show_default=False),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=SHAPE", help="Fix an input's shape: x=1x3x224x224 (repeatable)."
    ),
]
TargetText = Annotated[
    str,
    typer.Option(
        metavar=TARGET, help='For instance "llvm -mcpu=znver5 -num-cores=2"; this host if empty.'
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help="bf16, fp16 or tf32 lets products round their operands where that is faster.",
    ),
]
Database = Annotated[
    str,
    typer.Option(metavar=DATABASE, help=DATABASE_HELP),
]
Farm = Annotated[str, typer.Option("--tracker", metavar=TRACKER, help=FARM_HELP)]
Selector = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="SELECTOR",
        help='Devices that may measure it, by their tags: "cores>=8 host!=lab3".',
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Trials over all tasks; earlier ones count, finals do not. "
        f"[default: {TRIALS_A_TASK} a task]",
    ),
]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, metavar="M", help="Wall-clock limit in minutes.")
]

TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file", metavar=FILE, help="File (mode 0600) with the token that lets you in."
    ),
]
TlsCa = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        metavar=FILE,
        help="The CA that signed the tracker's certificate (PEM), or the word system.",
    ),
]
TlsCert = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        metavar=FILE,
        help="Your own certificate, where the tracker asks for one (PEM).",
    ),
]
TlsKey = Annotated[
    str, typer.Option("--tls-key", metavar=FILE, help="The key of your certificate (PEM).")
]


def use_access(token_file: str, tls_ca: str, tls_cert: str, tls_key: str) -> None:
    """Have this process call trackers with these; what is empty stays as the environment says."""
    from tunefarm.compiler import settings

    given = {
        settings.TOKEN_FILE.name: token_file,
        settings.TLS_CA.name: tls_ca,
        settings.TLS_CERT.name: tls_cert,
        settings.TLS_KEY.name: tls_key,
    }
    if token_file:
        os.environ.pop(settings.TOKEN.name, None)
    os.environ.update({name: value for name, value in given.items() if value})


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """``["x=1x3x224x224"]`` as a dictionary; TunefarmError names what does not parse, and an input
    that has two shapes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        name, equals, numbers = text.rpartition("=")
        parts = numbers.replace(",", "x").split("x") if numbers else []
        if not equals or not name or not all(p.isdecimal() for p in parts):
            raise TunefarmError(f"--shape {text!r} is not of the form name=1x3x224x224")
        shape = tuple(map(int, parts))
        if shapes.setdefault(name, shape) != shape:
            raise TunefarmError(f"--shape gives {name} two shapes, {shapes[name]} and {shape}")
    return shapes


def parse_tags(texts: Sequence[str] | None) -> dict[str, str]:
    """``["rack=3"]`` as a dictionary; TunefarmError names what is no tag, or is the farm's own."""
    from tunefarm.tracker.selector import OWN_TAGS, is_tag_name

    tags: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not is_tag_name(name) or not value:
            raise TunefarmError(
                f"--tag {text!r} is not of the form NAME=VALUE, with a name of letters, digits, "
                "_, - and . that begins with a letter; give for instance --tag rack=3"
            )
        if name in OWN_TAGS:
            raise TunefarmError(
                f"--tag {text!r}: {name} is told by the farm itself; choose another name than "
                f"{', '.join(OWN_TAGS)}"
            )
        tags[name] = value
    return tags


def parse_cores(text: str, target: str = "") -> list[Target]:
    """The target, or this host, on each number of cores in ``"1,2"``; on its own if there is none.

    TunefarmError if one of them is no number, or more than this machine's.
    """
    from tunefarm.compiler.target import Target
    from tunefarm.worker.device import own_cores

    most = len(own_cores())
    chosen = Target(target) if target else Target.host()
    found = []
    for word in text.split(",") if text else ():
        if not word.strip().isdecimal() or not 1 <= int(word) <= most:
            raise TunefarmError(
                f"--cores {text!r}: {word!r} is not a number of cores from 1 to {most}, all that "
                f"this machine has for it; give for instance --cores {most}"
            )
        options = {**chosen.options, "num-cores": str(int(word))}
        words = [chosen.kind, *(f"-{name}={value}" for name, value in options.items())]
        found.append(Target(" ".join(words)))
    return found or [chosen]


@dataclass(frozen=True, slots=True)
class Asked:
    """A model, and the options by which commands find the same tasks and records of it."""

    model: Path
    target: str
    shape: list[str] | None
    precision: str
    db: str = ""
    tracker: str = ""

    @property
    def model_name(self) -> str:
        """What people call it: its file's name, with the shapes and precision that they chose."""
        name = " ".join(filter(None, (self.model.stem, *(self.shape or ()), self.precision)))
        return name.encode(errors="replace").decode()  # of a file whose name is no UTF-8

    def module(self) -> IRModule:
        """The model, its shapes fixed and its precision allowed."""
        from tunefarm.api import allow_precision, read_model

        return allow_precision(read_model(self.model, parse_shapes(self.shape)), self.precision)

    def tasks(self) -> list[Task]:
        from tunefarm.api import extract_tasks

        return extract_tasks(self.module(), self.target or None)

    def source(self) -> str | tuple[Trial, ...]:
        """Where records come from, as ``history_source`` says."""
        return history_source(self.db, self.tracker)

    def command(self, name: str, *words: str) -> str:
        """Another command about the same: ``tunefarm tune model.onnx --db farm.db``."""
        options = [("--target", self.target), *(("--shape", text) for text in self.shape or ())]
        options += [
            ("--precision", self.precision), ("--db", self.db), ("--tracker", self.tracker),
        ]  # fmt: skip
        given = [word for option, value in options if value for word in (option, value)]
        return shlex.join(["tunefarm", name, str(self.model), *words, *given])

    def in_use(self, workloads: Iterable[Workload], out: Console) -> Asked:
        """The same without a precision that changes none of the model's tasks, which is said."""
        from tunefarm.api import as_target
        from tunefarm.compiler.transform.lower_precision import without_effect
        from tunefarm.tables import print_sentence

        told = without_effect(self.precision, workloads, as_target(self.target or None))
        if not told:
            return self
        print_sentence(out, told)
        return replace(self, precision="")

    def summary(self, history: History) -> str:
        """One line on the records of the model's tasks, with the command that tunes the rest where
        it can work."""
        return history.summary(self.command("tune") if self._can_tune(history) else "")

    def _can_tune(self, history: History) -> bool:
        """Whether ``tune`` finds its database and, without a farm, can measure on this machine."""
        from tunefarm.checks import check_host

        if history.source is None and not self._is_new_database():
            return False
        if self.tracker:
            return True
        try:
            for target in {made.target for made in history.decisions.values()}:
                check_host(target)
        except TunefarmError:
            return False
        return True

    def _is_new_database(self) -> bool:
        """Whether the database is a file that is not there yet, and can be made."""
        from tunefarm.db.dialect import parse_url, sqlite_path
        from tunefarm.db.errors import StoreError

        try:
            path = sqlite_path(parse_url(self.db)) if self.db else None
        except StoreError:
            return False
        return path is not None and not path.exists() and os.access(path.parent, os.W_OK)


def history_source(db: str, tracker: str = "") -> str | tuple[Trial, ...]:
    """Where a command takes records from; nothing while this user has no database yet.

    TunefarmError if both are given.
    """
    from tunefarm.api import default_database

    if tracker and db:
        raise TunefarmError("give --tracker (a running farm) or --db (a database), not both")
    if tracker:
        return f"tracker://{tracker}"
    if db:
        return db if "://" in db else f"sqlite:///{Path(db).expanduser().absolute()}"
    default = default_database()
    return default if Path(default.removeprefix("sqlite:///")).exists() else ()


def check_output(path: Path, *endings: str) -> None:
    """Refuse an output before the work is done that would be lost; TunefarmError says why."""
    if path.name in endings:
        wanted = path.with_name(f"model{path.name}")
        raise TunefarmError(f"{path} is an ending without a name; write for instance {wanted}")
    if endings and path.suffix not in endings and not path.is_dir():
        *others, last = endings
        known = f"{', '.join(others)} or {last}" if others else last
        wanted = path.with_suffix(endings[0])
        raise TunefarmError(f"{path} does not end in {known}; write {wanted}")
    if path.is_dir():
        raise TunefarmError(f"{path} is a folder; give the file to write")
    if not path.absolute().parent.is_dir():
        raise TunefarmError(f"{path} cannot be written: {path.parent} is no folder; make it first")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise TunefarmError(f"{path} cannot be written: permission denied")

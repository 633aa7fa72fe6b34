"""What commands print: answers, as tables or as JSON, and remarks, which ``--quiet`` leaves out.

Answers go to standard output. Warnings and errors go to standard error, whatever is asked for, and
with ``--verbose`` the log too.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tunefarm.proto.logs import Level
    from tunefarm.tables import Column

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@dataclasses.dataclass
class Loudness:
    """How much the command says beside its answer."""

    quiet: bool = False
    verbose: bool = False


_loudness = Loudness()


def add_loudness(command: Any) -> None:
    """Give a command, or a group and all in it, ``--quiet`` and ``--verbose``."""
    from typer.main import get_command

    donor = typer.Typer(add_completion=False)
    donor.command()(_loudness_options)
    options = [option for option in get_command(donor).params if option.name != "help"]
    for option in options:
        option.expose_value = False
    _add(command, options)


def _add(command: Any, options: Sequence[Any]) -> None:
    command.params += options
    for inner in getattr(command, "commands", {}).values():
        _add(inner, options)


def _be_quiet(value: bool) -> None:
    _loudness.quiet |= value


def _be_verbose(value: bool) -> None:
    if value and not _loudness.verbose:
        _loudness.verbose = True
        _log()


def _loudness_options(
    quiet: Annotated[
        bool,
        typer.Option(
            "-q", "--quiet", callback=_be_quiet, help="Print the answer alone, and warnings."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            callback=_be_verbose,
            help="Print the log too, and where an error came from.",
        ),
    ] = False,
) -> None:
    """The options that every command has."""


def _log() -> None:
    from tunefarm.proto.logs import Level, configure

    configure(level=Level.DEBUG)


def begin_loudness() -> None:
    """Say the usual, until an option of the command line asks for less or more."""
    _loudness.quiet = _loudness.verbose = False


def is_quiet() -> bool:
    """Whether remarks and progress are left out."""
    return _loudness.quiet


def is_verbose() -> bool:
    """Whether the log is shown."""
    return _loudness.verbose


def heard(level: Level) -> Level:
    """The level of a log that is asked for: ``level``, if neither quiet nor verbose is."""
    from tunefarm.proto.logs import Level

    return Level.DEBUG if is_verbose() else Level.WARNING if is_quiet() else level


def remarks(as_json: bool = False) -> Console:
    """Where remarks and progress go: standard output, or standard error beside JSON; nowhere when
    the command is quiet."""
    from tunefarm.tables import console

    out = console(stderr=as_json)
    out.quiet = is_quiet()
    return out


def remark(text: str) -> None:
    """Print a remark: a whole line at any width, and nothing when the command is quiet."""
    if not is_quiet():
        print(text, flush=True)


def print_json(value: object) -> None:
    """Print a value: dataclasses become objects, what is no number null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False), flush=True)


def plain(value: object) -> Any:
    """The value in what JSON has; TypeError for what has no place there."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case StrEnum() | Path():
            return str(value)
        case str():
            return value
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case Sequence():
            return [plain(inner) for inner in value]
        case Set():
            return sorted(plain(inner) for inner in value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def print_rows(rows: Sequence[object], columns: Sequence[Column], nothing: str = "") -> None:
    """Print a table, or the remark ``nothing`` if there are no rows."""
    from tunefarm.tables import console, print_table

    if rows:
        print_table(console(), columns)
    elif nothing:
        remark(nothing)

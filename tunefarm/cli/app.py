"""The commands, and how their errors are shown."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

import tunefarm
from tunefarm.cli import (
    certificates,
    config,
    dashboard,
    database,
    devices,
    doctor,
    farm,
    jobs,
    leases,
    model,
    records,
    report,
    tokens,
    top,
)
from tunefarm.cli.briefs import Sections, brief
from tunefarm.cli.options import TlsCa, TlsCert, TlsKey, TokenFile, use_access
from tunefarm.cli.printing import add_loudness, begin_loudness, is_verbose
from tunefarm.interrupts import repeating_lost_interrupts, terminating_as_interrupt

NAME = "tunefarm"
MISTAKEN = 2
UNAVAILABLE = 69  # the EX_UNAVAILABLE of sysexits.h: the same command may do later
IN_USE = 75  # its EX_TEMPFAIL: another tracker has the database
INTERRUPTED = 130
TERMINATED = 143
_STOPPED = {
    "tune": "; every finished trial is kept",
    "watch": "; the job goes on",
} | dict.fromkeys(("tracker", "worker", "tuner", "dashboard", "farm"), "")
"""What is said of a command that was stopped, if not that it was not done."""

app = typer.Typer(
    name=NAME,
    cls=Sections,
    help="Tune models on the hardware that runs them, and build them with the best records.\n\n"
    "Begin with: tunefarm tune model.onnx",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    token_file: TokenFile = "",
    tls_ca: TlsCa = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
) -> None:
    use_access(token_file, tls_ca, tls_cert, tls_key)
    if version:
        print(f"tunefarm {tunefarm.__version__}")
        raise typer.Exit


model.register(app)
farm.register(app)
jobs.register(app)
dashboard.register(app)
report.register(app)
app.add_typer(devices.app, name="devices")
app.add_typer(leases.app, name="leases")
app.add_typer(records.app, name="records")
app.add_typer(database.app, name="db")
app.add_typer(top.app, name="farm")
app.add_typer(tokens.app, name="token")
certificates.register(app)
config.register(app)
doctor.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line. Returns 0, 2 after a user's mistake, 69 where no tracker answers, 75
    where one has the database, 130 after Ctrl-C, 143 after SIGTERM.

    1 is left to our own bugs, which raise.
    """
    warnings.showwarning = _show_warning
    if isinstance(sys.stdout, io.TextIOWrapper):  # "?" for what its encoding does not have
        sys.stdout.reconfigure(errors="replace")
    begin_loudness()
    with repeating_lost_interrupts(), terminating_as_interrupt() as terminated:
        code = _call(arguments)
    if code != INTERRUPTED:
        return code
    command = next((word for word in arguments if not word.startswith("-")), "")
    print(f"stopped{_STOPPED.get(command, f' before {command} was done')}", file=sys.stderr)
    return TERMINATED if terminated else INTERRUPTED


@cache
def root() -> Any:
    """The whole command line, each command of which can be quiet or verbose."""
    made = get_command(app)
    add_loudness(made)
    brief(made)
    return made


def commands() -> config.Commands:
    """All commands and their options."""
    return config.Commands(root())


def _defaults(arguments: Sequence[str]) -> dict[str, Any]:
    """What the file and the environment say, but for processes of a farm that lasts as long as its
    parent: they are told all that they need. Help and ``config`` work with a broken file too."""
    told = {farm.EXIT_WITH_PARENT, "--help"} & set(arguments) or arguments[:1] == ["config"]
    return {} if told or not config.is_there() else config.defaults_for(commands(), arguments)


def _call(arguments: Sequence[str]) -> int:
    try:
        defaults = _defaults(arguments)
        result = root()(list(arguments), NAME, standalone_mode=False, default_map=defaults)
        if sys.stdout is not None:  # it is where the shell closed it
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # a reader such as `head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:  # so rich ends where it meets such a reader
        return 0
    except Exception as error:
        text = message_of(error)
        if text is None:
            raise
        if is_verbose():
            traceback.print_exc()
        told = text if _is_help(error) else f"{NAME}: {text}"
        print(told, file=sys.stderr)
        return _code_of(error)


def _code_of(error: Exception) -> int:
    from tunefarm.db.errors import DatabaseInUse
    from tunefarm.proto.errors import TrackerUnavailable

    match error:
        case TrackerUnavailable():
            return UNAVAILABLE
        case DatabaseInUse():
            return IN_USE
        case _:
            return MISTAKEN


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from tunefarm.compiler.errors import UnusedPrecisionWarning

    if not isinstance(message, UnusedPrecisionWarning):  # commands say it themselves
        print(f"tunefarm: {message}", file=sys.stderr)


def message_of(error: Exception) -> str | None:
    """The sentence for an error that is the user's or the machine's; None for our own bugs."""
    from tunefarm.compiler.errors import OpenShapeError, TunefarmError

    if isinstance(error, OpenShapeError):
        example = "x".join(map(str, error.example))
        return f"{error.problem}; use --shape {error.name}={example}"
    if isinstance(error, TunefarmError):
        return str(error)
    if hasattr(error, "format_message"):  # the command line itself was wrong
        return str(error.format_message()) if _is_help(error) else _usage_text(error)
    if type(error).__module__ in ("tunefarm.proto.errors", "tunefarm.db.errors"):
        return str(error)
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return None


def _is_help(error: Exception) -> bool:
    """Whether a command that does nothing by itself was given nothing to do, and tells its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _root_options() -> set[str]:
    """Options of all commands, which are given before the command."""
    return {name for option in root().params for name in option.opts}


def _usage_text(error: Any) -> str:
    """``missing argument 'MODEL'; see `tunefarm tune --help```, or what was meant."""
    text = str(error.format_message()).rstrip(".").partition(", unable to parse")[0]
    text = text[:1].lower() + text[1:].replace("Input should be", "it should be").replace(
        "Value error, ", ""
    )
    context = getattr(error, "ctx", None)
    if context is None or text.endswith("?"):
        return text
    option = getattr(error, "option_name", None)
    if option in _root_options():
        command = context.command_path.removeprefix(NAME)
        return f"{option} stands before the command: {NAME} {option} …{command}"
    return f"{text}; see `{context.command_path} --help`"

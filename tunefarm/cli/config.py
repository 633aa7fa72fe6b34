"""Defaults of options, from a file and the environment: what the command line leaves out.

    [defaults]                        TUNEFARM_TRACKER=lab1:9190
    tracker = "lab1:9190"             TUNEFARM_TUNE_TRIALS=500

    [tune]
    trials = 500

The command line comes first, then the environment, then the file; in both, what is said of one
command before what is said of all. ``[settings]`` of the file stands for the environment variables
of ``compiler.settings``, for Python's interface too.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from tunefarm.cli.printing import Json, print_json
from tunefarm.compiler import settings
from tunefarm.compiler.errors import TunefarmError

DEFAULTS = "defaults"
_PREFIX = settings.PREFIX
_EXCLUSIVE = (("tracker", "db"), ("tracker", "rendezvous"))
_SECRETS = (settings.TOKEN.name,)

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """A value for the option ``name`` (as of Python) of a command. ``rank`` 0 to 3 says how much
    it is worth: in the file for all commands, for this one, in the environment for all, for this
    one."""

    command: Words
    name: str
    value: Any
    rank: int
    source: str

    @property
    def is_for_all(self) -> bool:
        return self.rank in (0, 2)


class Commands:
    """The commands of an application and their options, by name."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.options = {
            words: {p.name: p for p in command.params if _is_option(p)}
            for words, command in _walk(root, ())
        }

    def check(self, given: Given) -> None:
        """TunefarmError, naming the source, if the value is not one for the option."""
        parameter = self.options[given.command][given.name]
        context = self._root.make_context("tunefarm", [], resilient_parsing=True)
        try:
            parameter.process_value(context, given.value)
        except Exception as error:
            said = error.format_message() if hasattr(error, "format_message") else str(error)
            raise TunefarmError(f"{given.source}: {said[:1].lower()}{said[1:]}") from None


def _is_option(parameter: Any) -> bool:
    is_shown = not getattr(parameter, "hidden", False)
    return parameter.param_type_name == "option" and is_shown and parameter.name != "help"


def _walk(group: Any, words: Words) -> Iterator[tuple[Words, Any]]:
    for name, command in group.commands.items():
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from _walk(command, (*words, name))


def is_there() -> bool:
    """Whether there may be a value for any option: the commands need not be asked otherwise."""
    known = {setting.name for setting in settings.SETTINGS}
    others = (name for name in os.environ if name.startswith(_PREFIX) and name not in known)
    return any(section != settings.SECTION for section in settings.config()) or any(others)


def given_options(commands: Commands) -> list[Given]:
    """All values of the file and the environment that are for options.

    TunefarmError for a section, an option or a value that there is not.
    """
    found = [*_of_file(commands), *_of_environment(commands)]
    for given in found:
        commands.check(given)
    return found


def _of_file(commands: Commands) -> Iterator[Given]:
    path = settings.CONFIG.get()
    for words, option, value in _entries(settings.config(), ()):
        if words == (settings.SECTION,):
            continue
        name = option.replace("-", "_")
        source = f"{path} [{'.'.join(words)}] {option}"
        if words == (DEFAULTS,):
            served = [w for w, options in commands.options.items() if name in options]
            if not served:
                raise TunefarmError(f"{source}: no command has an option --{option}")
            for one in served:
                yield Given(one, name, _several(commands.options[one][name], value), 0, source)
        elif words not in commands.options:
            known = [".".join(w) for w in commands.options]
            raise TunefarmError(
                f"{path}: [{'.'.join(words)}] is no command{_meant('.'.join(words), known)}"
            )
        elif name not in commands.options[words]:
            known = [n.replace("_", "-") for n in commands.options[words]]
            raise TunefarmError(
                f"{source}: {' '.join(words)} has no option --{option}{_meant(option, known)}"
            )
        else:
            yield Given(words, name, _several(commands.options[words][name], value), 1, source)


def _several(option: Any, value: Any) -> Any:
    """The value as a list, where the option may be given several times."""
    return [value] if option.multiple and not isinstance(value, list) else value


def _entries(table: Mapping[str, Any], words: Words) -> Iterator[tuple[Words, str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _entries(value, (*words, key))
        else:
            yield words, key, value


def _meant(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _of_environment(commands: Commands) -> Iterator[Given]:
    known = {setting.name for setting in settings.SETTINGS}
    for words, options in commands.options.items():
        for name, parameter in options.items():
            whole = _PREFIX + "_".join((*words, name)).upper().replace("-", "_")
            for rank, variable in ((2, _PREFIX + name.upper()), (3, whole)):
                text = os.environ.get(variable, "")
                if text and variable not in known:
                    value = text.split() if parameter.multiple else text
                    yield Given(words, name, value, rank, variable)


def unknown_variables(commands: Commands) -> list[str]:
    """Variables that begin as ours do, and mean nothing."""
    known = {setting.name for setting in settings.SETTINGS}
    known |= {given.source for given in _of_environment(commands)}
    return sorted(n for n in os.environ if n.startswith(_PREFIX) and n not in known)


def defaults_for(commands: Commands, arguments: Sequence[str]) -> dict[str, Any]:
    """The values as a nested map of commands, as the parser takes it.

    Of two options that exclude each other, the one on the command line, or worth more, stays.
    """
    best = _best(commands)
    typed = {a.split("=")[0].lstrip("-").replace("-", "_") for a in arguments if a[:2] == "--"}
    made: dict[str, Any] = {}
    for (command, name), given in best.items():
        rivals = [b if name == a else a for a, b in _EXCLUSIVE if name in (a, b)]
        others = [best[command, r] for r in rivals if (command, r) in best]
        if typed & set(rivals) or any(other.rank > given.rank for other in others):
            continue
        place = made
        for word in command:
            place = place.setdefault(word, {})
        place[name] = given.value
    return made


def _best(commands: Commands) -> dict[tuple[Words, str], Given]:
    """The value that is worth most, for each option that has any."""
    found = sorted(given_options(commands), key=lambda g: g.rank)
    return {(given.command, given.name): given for given in found}


# --- the command --------------------------------------------------------------------------------


def register(app: typer.Typer) -> None:
    """Add ``config`` to the commands."""
    group = typer.Typer(
        help="Where defaults come from: a file and the environment.\n\n"
        "Example: tunefarm config show",
        no_args_is_help=True,
    )
    group.command("show")(show)
    group.command("path")(path_)
    app.add_typer(group, name="config")


def path_() -> None:
    """Print the path of the file, which need not exist.

    Example: $EDITOR $(tunefarm config path)
    """
    print(settings.CONFIG.get())


def show(as_json: Json = False) -> None:
    """Show each setting, and each option that the file or the environment sets, and by which.

    Example: tunefarm config show
    """
    from tunefarm.tables import Column, console, print_table

    rows = [*_settings(), *_options()]
    if as_json:
        print_json([dict(zip(("name", "value", "source"), r, strict=True)) for r in rows])
        return
    names, values, sources = zip(*rows, strict=True)
    columns = [
        Column("what", names, left=True),
        Column("value", values, least=10, left=True),
        Column("from", sources, least=10, left=True),
    ]
    print_table(console(), columns)


def _settings() -> Iterator[tuple[str, str, str]]:
    for setting in settings.SETTINGS:
        told = setting.text()
        yield setting.name, "***" if told and setting.name in _SECRETS else told, setting.source()


def _options() -> Iterator[tuple[str, str, str]]:
    from tunefarm.cli.app import commands

    known = commands()
    rows = {}
    for given in _best(known).values():
        value = given.value
        told = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        words = ("…",) if given.is_for_all else given.command
        rows[f"{' '.join(words)} --{given.name.replace('_', '-')}"] = (told, given.source)
    yield from ((name, *rows[name]) for name in sorted(rows))
    for variable in unknown_variables(known):
        yield variable, os.environ[variable], "the environment; no option and no setting"

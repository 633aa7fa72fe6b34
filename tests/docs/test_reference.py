"""The reference is made from docstrings: everything in it has one."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/api.md"
GRAMMARS = (
    "compiler/ir.py", "compiler/te.py", "compiler/tir/ir.py", "compiler/space/config.py",
    "compiler/workload.py", "compiler/target.py", "tunefarm/api.py", "tunefarm/tuning.py",
    "tunefarm/trials.py", "tunefarm/outcome.py",
    *(str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("db/records/*.py"))),
)  # fmt: skip
"""Files that are read as a whole: every public name in them says what it is."""
_ENTRY = re.compile(r"^::: (\S+)(?:\n    options:\n      members:\n((?:        - \w+\n)+))?", re.M)


def entries() -> Iterator[tuple[str, Any]]:
    """The names of the page and what they stand for, the members that it lists among them."""
    for name, listed in _ENTRY.findall(PAGE.read_text()):
        found = named(name)
        yield name, found
        for member in re.findall(r"- (\w+)", listed):
            yield f"{name}.{member}", getattr(found, member)


def named(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nothing")


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    for member, found in vars(value).items() if inspect.isclass(value) else ():
        inner = getattr(found, "__func__", found)
        if not member.startswith("_") and (
            inspect.isfunction(inner) or isinstance(inner, property | cached_property)
        ):
            yield f"{name}.{member}", inner


def test_everything_in_the_reference_has_a_docstring() -> None:
    found = list(entries())
    found += [member for name, value in found for member in members(name, value)]
    assert len(found) > 80
    assert [name for name, value in found if not (value.__doc__ or "").strip()] == []


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_public_name_of_a_grammar_says_what_it_is(name: str) -> None:
    assert list(undocumented(ast.parse((ROOT / name).read_text()))) == []


def undocumented(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Public classes, functions and methods without a docstring; those of protocols need none."""
    for inner in node.body:
        if not isinstance(inner, ast.FunctionDef | ast.ClassDef) or inner.name.startswith("_"):
            continue
        is_overload = any(ast.unparse(mark) == "overload" for mark in inner.decorator_list)
        if ast.get_docstring(inner) is None and not is_overload:
            yield inner.name
        if isinstance(inner, ast.ClassDef) and "Protocol" not in map(ast.unparse, inner.bases):
            yield from (f"{inner.name}.{method}" for method in undocumented(inner))


def test_names_without_docstrings_are_found() -> None:
    text = "class A:\n    '''x'''\n    def f(self): ...\ndef g(): ...\ndef _h(): ..."
    assert list(undocumented(ast.parse(text))) == ["A.f", "g"]

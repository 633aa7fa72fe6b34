"""Which devices a job may have: conditions on their tags, ``kind=cuda arch>=sm_90 host!=lab3``.

    selector  = [ condition { " " | "," condition } ]      all of them hold
    condition = name ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
    value     = word { "|" word } | "'" text "'" | '"' text '"'

``=`` and ``!=`` compare text; in words ``*`` stands for any text, and ``|`` parts alternatives. The
others compare numbers and versions: runs of digits by value, so 3.9 < 3.10 and sm_90 > sm_89,
where the text around them is the same; ``arch>=sm_90`` leaves out gfx942. A device that lacks a
tag meets ``!=`` on it, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from tunefarm.db.records import Device

MAX_LENGTH = 1000
"""Characters that a selector may have."""
OWN_TAGS = ("device", "kind", "model", "worker", "compiler")
"""Tags that the farm knows of every device, whatever its worker tells."""

_EXAMPLE = '"kind=cuda arch>=sm_90 host!=lab3"'
_GAP = re.compile(r"[\s,]*")
_CONDITION = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*) \s* (?P<operator>!=|<=|>=|==|=|<|>) \s*"
    r"(?: '(?P<single>[^']*)' | \"(?P<double>[^\"]*)\" | (?P<word>[^\s,'\"=!<>]+) ) (?=[\s,]|$)",
    re.VERBOSE | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_WORD = re.compile(r"\S+")
_RUNS = re.compile(r"[0-9]+|[^0-9]+")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a tag; ``values`` are alternatives, patterns unless they were quoted."""

    name: str
    operator: str
    values: tuple[str, ...]
    is_quoted: bool = False

    def __str__(self) -> str:
        value = "|".join(self.values)
        if self.is_quoted:
            value = f"'{value}'" if '"' in value else f'"{value}"'
        return f"{self.name}{self.operator}{value}"

    def holds(self, tags: Mapping[str, str]) -> bool:
        """Whether a device with these tags meets it."""
        found = tags.get(self.name)
        if self.operator == "!=":
            return found is None or not self._equals(found)
        if found is None:
            return False
        if self.operator == "=":
            return self._equals(found)
        order = compare_versions(found, self.values[0])
        return order is not None and _ORDERS[self.operator](order)

    def _equals(self, found: str) -> bool:
        if self.is_quoted:
            return found == self.values[0]
        return any(_is_like(found, pattern) for pattern in self.values)


_ORDERS = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that a device meets all of; none of them is met by every device."""

    conditions: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.conditions))

    def selects(self, device: Device) -> bool:
        if not self.conditions:
            return True
        tags = tags_of(device)
        return all(condition.holds(tags) for condition in self.conditions)


def tags_of(device: Device) -> dict[str, str]:
    """The names that conditions can use of a device: the options of its target, what its worker
    tells of it, then what the farm knows."""
    _, *words = device.target.split() or [""]
    options = (word.lstrip("-").partition("=") for word in words)
    known = (device.id, device.kind, device.model, device.worker, device.compiler_version)
    return {
        **{name: value for name, _, value in options},
        **device.attributes,
        **dict(zip(OWN_TAGS, known, strict=True)),
    }


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """The conditions of a text; ValueError says in one sentence what is none, and what is."""
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"the selector of devices has {len(text)} characters; {MAX_LENGTH} are allowed"
        )
    return Selector(tuple(_conditions(text)))


def is_tag_name(text: str) -> bool:
    """Whether conditions can use a tag of this name."""
    return _NAME.fullmatch(text) is not None


def _conditions(text: str) -> Iterator[Condition]:
    at = _end_of_gap(text, 0)
    while at < len(text):
        match = _CONDITION.match(text, at)
        if match is None:
            raise ValueError(_unclear(text, at))
        yield _checked(match)
        at = _end_of_gap(text, match.end())


def _end_of_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    assert gap is not None
    return gap.end()


def _checked(match: re.Match[str]) -> Condition:
    operator = "=" if match["operator"] == "==" else match["operator"]
    quoted = match["single"] if match["single"] is not None else match["double"]
    if quoted is not None:
        condition = Condition(match["name"], operator, (quoted,), is_quoted=True)
    else:
        condition = Condition(match["name"], operator, tuple(match["word"].split("|")))
    if "" in condition.values and not condition.is_quoted:
        raise ValueError(
            f"{match[0]!r} has an empty alternative; write for instance host=lab1|lab2"
        )
    if operator in _ORDERS:
        _check_order(match[0], condition)
    return condition


def _check_order(text: str, condition: Condition) -> None:
    value, operator = "|".join(condition.values), condition.operator
    if not condition.is_quoted and ("*" in value or "|" in value):
        raise ValueError(f"{text!r}: * and | stand in values of = and != only, not of {operator}")
    if not any(run[0].isdigit() for run in _RUNS.findall(value)):
        raise ValueError(
            f"{text!r}: {operator} compares numbers and versions, such as 8, 3.10 or sm_90, and "
            f"{value!r} has no digit; use = or != for text"
        )


def _unclear(text: str, at: int) -> str:
    """What is wrong with the condition that begins at a place, and what is allowed."""
    name = _NAME.match(text, at)
    rest = text[name.end() :].lstrip() if name else ""
    word = _WORD.match(text, at)
    assert word is not None
    if name is None or not rest or rest[0] not in "=!<>":
        what = f"{word[0]!r} is no condition"
    elif rest.lstrip("=!<> ")[:1] in ("'", '"'):
        what = f"{text[at:]!r} has a quote that does not end, or more after it"
    elif not rest.lstrip("=!<>").strip(" ,"):
        what = f"{text[at:].strip()!r} lacks its value"
    else:
        what = f"{word[0]!r} is no condition"
    return (
        f"{what}; a device is selected by NAME=VALUE, with =, !=, <, <=, > or >=, for instance "
        f"{_EXAMPLE}"
    )


def compare_versions(left: str, right: str) -> int | None:
    """Below, at or above 0 as the left one is less, equal or greater; None where text differs."""
    for a, b in zip_longest(_RUNS.findall(left), _RUNS.findall(right)):
        if a is None or b is None:
            return -1 if a is None else 1
        if a[0].isdigit() != b[0].isdigit() or (not a[0].isdigit() and a != b):
            return None
        if a[0].isdigit() and _magnitude(a) != _magnitude(b):
            return -1 if _magnitude(a) < _magnitude(b) else 1
    return 0


def _magnitude(digits: str) -> tuple[int, str]:
    """What orders runs of digits by value, of any length."""
    digits = digits.lstrip("0")
    return len(digits), digits


def _is_like(text: str, pattern: str) -> bool:
    """Whether the text is the pattern, in which ``*`` stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last)

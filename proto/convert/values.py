"""Texts, enumerations (0 means None) and configs."""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb


def text_to_wire(text: str) -> str:
    """The text with lone surrogates (raw bytes of some process) replaced, as UTF-8 demands."""
    return text.encode("utf-8", "replace").decode("utf-8")


def error_to_wire(error: rec.ErrorKind | None) -> str:
    return f"ERROR_KIND_{error.name}" if error else "ERROR_KIND_UNSPECIFIED"


def error_from_wire(value: int) -> rec.ErrorKind | None:
    """A kind that only a newer release knows counts as a run error: its trial has failed."""
    if value not in pb.ErrorKind.values():
        return rec.ErrorKind.RUN_ERROR
    name = _enum_name(pb.ErrorKind, value, "ERROR_KIND_")
    return rec.ErrorKind[name] if name else None


def state_to_wire(state: rec.JobState) -> str:
    return f"JOB_STATE_{state.name}"


def state_from_wire(value: int) -> rec.JobState:
    name = _enum_name(pb.JobState, value, "JOB_STATE_")
    if name is None:
        raise ValueError("the message names no job state")
    return rec.JobState[name]


def verdict_to_wire(verdict: rec.Verdict | None) -> str:
    return f"VERDICT_{verdict.name}" if verdict else "VERDICT_UNSPECIFIED"


def verdict_from_wire(value: int) -> rec.Verdict | None:
    name = _enum_name(pb.Verdict, value, "VERDICT_")
    return rec.Verdict[name] if name else None


def match_to_wire(match: rec.Match) -> str:
    return f"MATCH_{match.name}"


def match_from_wire(value: int) -> rec.Match:
    name = _enum_name(pb.Match, value, "MATCH_")
    if name is None:
        raise ValueError("the message names no match")
    return rec.Match[name]


def _enum_name(enum: object, value: int, prefix: str) -> str | None:
    names: Mapping[int, str] = {v: k for k, v in enum.items()}  # type: ignore[attr-defined]
    if value not in names:
        kind = prefix.rstrip("_").lower().replace("_", " ")
        raise ValueError(f"{value} is no {kind} known here; a newer version of tunefarm sent it")
    return names[value].removeprefix(prefix) if value else None


def config_to_wire(config: rec.Config) -> pb.Config:
    wire = pb.Config()
    for name, value in config.items():
        if isinstance(value, str):
            wire.values[name].text = value
        else:
            wire.values[name].number = value
    return wire


def config_from_wire(wire: pb.Config) -> dict[str, int | str]:
    """The config with its knobs in name order, so that equal configs print equally."""
    return {name: _knob_from_wire(name, wire.values[name]) for name in sorted(wire.values)}


def _knob_from_wire(name: str, value: pb.ConfigValue) -> int | str:
    match value.WhichOneof("value"):
        case "number":
            return value.number
        case "text":
            return value.text
        case _:
            raise ValueError(f"knob {name!r} of a config has no value")

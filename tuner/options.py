"""How a tuner process is started, and what a job may ask of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from tunefarm.compiler.errors import TunefarmError
from tunefarm.proto.tls import Tls
from tunefarm.tuner.search import DEFAULT_STRATEGY


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """What ``tunefarm tuner`` and the embedded farm decide.

    The tracker is named by ``rendezvous`` (a file that it wrote, read again when the tracker
    cannot be reached) or by ``tracker`` (HOST:PORT), ``token`` and ``tls``. ``job`` restricts the
    tuner to one job. With ``once`` it ends when one job is over. ``threads`` bounds the model's.
    With ``health_port`` (0: a free one) it answers probes over HTTP there.
    """

    tracker: str = ""
    token: str = field(default="", repr=False)
    rendezvous: Path | None = None
    name: str = ""
    job: str = ""
    once: bool = False
    threads: int = 1
    tls: Tls | None = None
    health_port: int | None = None
    health_host: str = "127.0.0.1"

    @property
    def identity(self) -> str:
        return self.name or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What ``Job.options`` may say, all as text there.

    ``first_trials`` each task gets before the scheduler compares tasks; a task without a gain in
    ``patience`` trials is left alone (0: never). ``finalists`` meet the default in the final.
    ``device_model`` asks for devices of one model. ``warm_start`` 0 ignores other tasks' trials.
    """

    strategy: str = DEFAULT_STRATEGY
    model: str = "xgboost"
    seed: int = 0
    first_trials: int = 8
    patience: int = 96
    finalists: int = 3
    device_model: str = ""
    warm_start: int = 1

    @staticmethod
    def of(values: Mapping[str, str]) -> JobOptions:
        """Options of a job; names that are meant for others are passed over.

        TunefarmError if a number is none.
        """
        found: dict[str, str | int] = {}
        for one in fields(JobOptions):
            if one.name not in values:
                continue
            text = values[one.name]
            if isinstance(one.default, int) and not text.isdigit():
                raise TunefarmError(f"job option {one.name} is {text!r}; write a whole number")
            found[one.name] = int(text) if isinstance(one.default, int) else text
        return JobOptions(**found)  # type: ignore[arg-type]

"""Log lines of the farm's processes: what happened, and the ids of the work that it happened to.

    _log.info("granted to %s", client, extra=ids_of_lease(lease))
    with bound(job=job.id): ...        # every line of this thread or task carries the job

A line has ``job``, ``lease``, ``epoch``, ``trial``, ``task``, ``device``, ``worker`` where they are
known, so that one trial can be followed through tracker, worker and tuner.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from tunefarm.db.records import Lease, Trial, Work

_FIELD = "ids"
_bound: ContextVar[Mapping[str, object]] = ContextVar("tunefarm_log_ids", default={})  # noqa: B039
_PREFIX = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ [\w.]+: ")


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(format_: Format = Format.TEXT, level: Level = Level.INFO) -> None:
    """Write the log of this process to standard error, in lines of text or of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine() if format_ is Format.JSON else _TextLine())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tunefarm").setLevel(level.upper())


def message_of(line: str) -> str:
    """A line of text without its time, level and logger; any other line as it stands."""
    return _PREFIX.sub("", line)


# --- ids ----------------------------------------------------------------------------------------


@contextmanager
def bound(**found: object) -> Iterator[None]:
    """Have every line that this thread or task logs meanwhile carry these ids too."""
    token = _bound.set({**_bound.get(), **found})
    try:
        yield
    finally:
        _bound.reset(token)


def ids(**found: object) -> dict[str, Any]:
    """What ``extra`` of a logging call takes for the line to carry these ids."""
    return {_FIELD: found}


def ids_of_lease(lease: Lease) -> dict[str, Any]:
    return ids(job=lease.job, lease=lease.id, epoch=lease.epoch, device=lease.device)


def ids_of_work(work: Work) -> dict[str, Any]:
    """Those of a candidate under the lease that it is measured under."""
    request = work.request
    return ids(
        job=request.job,
        lease=work.lease,
        epoch=work.epoch,
        task=request.task.workload,
        trial=request.number,
        device=work.device,
    )


def ids_of_trial(trial: Trial, lease: str, epoch: int) -> dict[str, Any]:
    return ids(
        job=trial.job,
        lease=lease,
        epoch=epoch,
        task=trial.task.workload,
        trial=trial.number,
        device=trial.device,
    )


def _ids_of(record: logging.LogRecord) -> dict[str, object]:
    found = {**_bound.get(), **getattr(record, _FIELD, {})}
    return {name: value for name, value in found.items() if value not in ("", None)}


# --- lines --------------------------------------------------------------------------------------


def _time_of(record: logging.LogRecord) -> str:
    """When it happened, to the millisecond, in UTC."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class _JsonLine(logging.Formatter):
    """``{"time": …, "level": …, "logger": …, "message": …, "job": …, …}``"""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextLine(logging.Formatter):
    """``TIME LEVEL LOGGER: MESSAGE job=… lease=…``"""

    def format(self, record: logging.LogRecord) -> str:
        words = [f"{name}={value}" for name, value in _ids_of(record).items()]
        logger = record.name.removeprefix("tunefarm.")
        head = f"{_time_of(record)} {record.levelname} {logger}:"
        line = " ".join([head, record.getMessage(), *words])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

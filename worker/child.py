"""The inside of a helper process: import, give up what it does not need, answer requests.

Code is imported before the process is confined, and threads are started before the last step of
that: see ``sandbox``. This module and those of the sandbox import the standard library alone.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.worker import sandbox, wire
from tunefarm.worker.sandbox import HOST, Policy
from tunefarm.worker.wire import Blob, Frame, Header

Reply: TypeAlias = tuple[Header, Sequence[Blob]]
Handler: TypeAlias = Callable[[Frame], Reply]
REQUEST_LIMIT_BYTES = 1 << 34


def _nothing() -> None:
    """What a service without threads starts."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a helper process does: a handler for each ``op``; ``start`` starts the threads that
    they need, and imports what is left to import.

    A service that starts ``threads`` in its handlers keeps the right to, and to make any other
    call. One that runs ``candidates`` opens no file where Landlock cannot tell code from secrets,
    as far as its ``policy`` does not need it to.
    """

    handlers: Mapping[str, Handler]
    start: Callable[[], None] = _nothing
    threads: bool = False
    candidates: bool = False
    policy: Policy = HOST


def serve(load: Callable[[str], Service], failure: str) -> None:
    """Answer requests ``{"op": …, "nonce": …}`` until the socket closes.

    Arguments of the process: socket, parent's id, memory limit, cores, and the target, which
    ``load`` gets. Each reply carries the request's nonce. A handler's exception is answered as
    ``{"error": kind, "message": …}``, where the kind is ``failure`` unless the exception says
    more. The first request is ``warm``, which tells what confines the process.
    """
    handle, parent, memory_bytes, cores, target = sys.argv[1:6]
    sock = socket.socket(fileno=int(handle))
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    sandbox.limit(int(parent))
    service = load(target)
    sandbox.bound_memory(int(memory_bytes), service.policy)
    read_settings()
    applied = confine(service)
    handlers = {"warm": lambda _: ({"sandbox": applied}, ()), **service.handlers}
    while (frame := wire.receive(sock, REQUEST_LIMIT_BYTES)) is not None:
        header, blobs = answer(handlers, frame, failure)
        wire.send(sock, {**header, "nonce": frame.header["nonce"]}, blobs)
        del frame, header, blobs


def read_settings() -> None:
    """Read the user's file of settings while files can be read."""
    from tunefarm.compiler import settings

    settings.config()


def confine(service: Service) -> list[str]:
    """Confine this process as the service allows, and start it; what applies now."""
    from tunefarm.compiler import settings
    from tunefarm.compiler.host import may_use_tiles

    may_use_tiles()  # asks Linux, which a confined process cannot
    policy = service.policy
    wanted = settings.GPU_SANDBOX.get() if policy.optional else settings.SANDBOX
    if policy.starts_first:
        service.start()
    applied = ["landlock"] if "landlock" in wanted and sandbox.shut_files(policy) else []
    if not policy.starts_first:
        service.start()
    opening = bool(applied) or not service.candidates
    calls = "seccomp" in wanted and not service.threads
    if calls and sandbox.shut_calls(policy, opening=opening):
        applied.append("seccomp")
    return applied


def answer(handlers: Mapping[str, Handler], frame: Frame, failure: str) -> Reply:
    """The handler's reply, or the error that stands for its exception."""
    from tunefarm.compiler.errors import PluginError, PluginMismatch, ScheduleError, TunefarmError
    from tunefarm.worker.backend import CandidateError

    try:
        return handlers[str(frame.header["op"])](frame)
    except CandidateError as error:
        return {"error": error.kind, "message": str(error)}, ()
    except ScheduleError as error:
        return {"error": "instantiation", "message": str(error)}, ()
    except MemoryError as error:
        return {"error": "out_of_memory", "message": f"memory ran out: {error}"}, ()
    except PluginMismatch as error:
        return {"error": "device_lost", "message": str(error)}, ()
    except PluginError as error:
        traceback.print_exc()
        return {"error": failure, "message": str(error)[:2000]}, ()
    except TunefarmError as error:
        return {"error": failure, "message": str(error)}, ()
    except Exception as error:
        traceback.print_exc()
        return {"error": failure, "message": f"{type(error).__name__}: {error}"[:2000]}, ()

"""The inside of a helper process: confine itself, then answer requests until the parent leaves.

This module and ``sandbox`` import the standard library alone: everything else is imported after
the process is confined.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tunefarm.worker import wire
from tunefarm.worker.sandbox import confine
from tunefarm.worker.wire import Blob, Frame, Header

Reply: TypeAlias = tuple[Header, Sequence[Blob]]
Handler: TypeAlias = Callable[[Frame], Reply]
REQUEST_LIMIT_BYTES = 1 << 34


def serve(load_handlers: Callable[[str], Mapping[str, Handler]], failure: str) -> None:
    """Answer requests ``{"op": …}`` until the socket closes.

    Arguments of the process: socket, parent's id, scratch directory, memory limit, cores, and the
    target kind, which ``load_handlers`` gets. A handler's exception is answered as
    ``{"error": kind, "message": …}``, where the kind is ``failure`` unless the exception says more.
    """
    handle, parent, scratch, memory_bytes, cores, kind = sys.argv[1:7]
    sock = socket.socket(fileno=int(handle))
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    confine(int(parent), Path(scratch), int(memory_bytes))
    handlers = load_handlers(kind)
    while (frame := wire.receive(sock, REQUEST_LIMIT_BYTES)) is not None:
        header, blobs = answer(handlers, frame, failure)
        wire.send(sock, header, blobs)
        del frame, header, blobs


def answer(handlers: Mapping[str, Handler], frame: Frame, failure: str) -> Reply:
    """The handler's reply, or the error that stands for its exception."""
    from tunefarm.compiler.errors import ScheduleError, TunefarmError

    try:
        return handlers[str(frame.header["op"])](frame)
    except ScheduleError as error:
        return {"error": "instantiation", "message": str(error)}, ()
    except MemoryError as error:
        return {"error": "out_of_memory", "message": f"memory ran out: {error}"}, ()
    except TunefarmError as error:
        return {"error": failure, "message": str(error)}, ()
    except Exception as error:
        traceback.print_exc()
        return {"error": failure, "message": f"{type(error).__name__}: {error}"[:2000]}, ()

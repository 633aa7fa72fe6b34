"""Libraries in processes of their own, of which one runs at a time.

In one process, pools whose threads spin while they wait take the cores from whoever is timed next.
A process of ``Apart`` answers when its threads are asleep, and then blocks on its pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from timing import Contender, seconds_of, wait_for_quiet

Maker = Callable[..., Mapping[str, Contender]]


class Apart:
    """A process in which ``make``, a function of a module, makes contenders to call from here."""

    def __init__(self, make: Maker) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self.process.start()
        theirs.close()

    def make(self, *arguments: object) -> dict[str, Contender]:
        """The contenders of ``make(*arguments)``, which take the place of the ones before.

        Their arguments and outputs are pickled. What they raise ends this process as well.
        """
        names = self._ask("make", *arguments)
        return {
            name: Contender(
                partial(self._ask, "seconds", name, 1, 0.0),
                partial(self._ask, "output", name),
                partial(self._ask, "seconds", name),
            )
            for name in names
        }

    def close(self) -> None:
        """End the process and wait for it, so that its time counts as this one's."""
        self._pipe.close()
        self.process.join()

    def _ask(self, *request: object) -> Any:
        try:
            self._pipe.send(request)
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            sys.exit(f"the process of a library died with exit code {self.process.exitcode}")
        if kind == "failed":
            sys.exit(f"a library failed in its process:\n{answer}")
        return answer


@contextlib.contextmanager
def apart(*makers: Maker) -> Iterator[list[Apart]]:
    """A process a maker, for the duration of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Apart(make))) for make in makers]


def _serve(pipe: Connection, make: Maker) -> None:
    """Answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and closes the pipe
    contenders: dict[str, Contender] = {}
    while True:
        try:
            what, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            if what == "make":
                contenders.clear()
                contenders |= make(*arguments)
                answer: object = list(contenders)
            elif what == "output":
                answer = contenders[arguments[0]].output()
            else:
                name, number, warm_s = arguments
                answer = seconds_of(contenders[name].call, number, warm_s)
            wait_for_quiet()
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(("done", answer))

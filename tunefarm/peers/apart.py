"""Libraries in processes of their own, of which one runs at a time.

In one process, pools whose threads spin while they wait take the cores from whoever is timed next.
A process of ``Apart`` answers when its threads are asleep, and then blocks on its pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.interrupts import ignoring_interrupts
from tunefarm.peers.turns import Contender, seconds_of, wait_for_quiet

Maker = Callable[..., Mapping[str, Contender]]
_GRACE_S = 10.0  # for a process to end whose pipe is closed


class LibraryFailed(TunefarmError):
    """A library raised or died in its process; its traceback is a note."""


class Apart:
    """A process in which ``make``, a function of a module, makes contenders to call from here.

    Whatever is asked of it raises LibraryFailed if the library fails.
    """

    def __init__(self, make: Maker) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._is_waiting = False
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        with ignoring_interrupts():  # inherited: on Ctrl-C this process closes the pipe
            self.process.start()
        theirs.close()

    def make(self, *arguments: object) -> dict[str, Contender]:
        """The contenders of ``make(*arguments)``, which take the place of the ones before.

        Their arguments and outputs are pickled.
        """
        names = self._ask("make", *arguments)
        return {
            name: Contender(
                partial(self._ask, "seconds", name, 1, 0.0),
                partial(self._ask, "outputs", name),
                partial(self._ask, "seconds", name),
            )
            for name in names
        }

    def close(self) -> None:
        """End the process, at once if it has not answered yet, and wait for it, so that its time
        counts as this one's. A library that does not let its process end is not waited for."""
        if self._is_waiting:
            self.process.kill()
        self._pipe.close()
        self.process.join(_GRACE_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()

    def _ask(self, *request: object) -> Any:
        self._is_waiting = True
        try:
            self._pipe.send(request)
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            raise LibraryFailed(f"its process died with exit code {code}") from None
        self._is_waiting = False
        if kind == "failed":
            failure = LibraryFailed(answer.strip().splitlines()[-1])
            failure.add_note(answer)
            raise failure
        return answer


@contextlib.contextmanager
def apart(*makers: Maker) -> Iterator[list[Apart]]:
    """A process a maker, for the duration of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Apart(make))) for make in makers]


def _serve(pipe: Connection, make: Maker) -> None:
    """Answer requests until the other end of the pipe is closed."""
    warnings.simplefilter("ignore")  # the caller reads the same records and says what is wrong
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
            elif what == "outputs":
                answer = contenders[arguments[0]].outputs()
            else:
                name, number, warm_s = arguments
                answer = seconds_of(contenders[name].call, number, warm_s)
            wait_for_quiet()
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(("done", answer))

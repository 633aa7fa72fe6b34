"""A helper process of the worker: started by exec, spoken to in frames, killed as a group."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

from tunefarm.worker import wire
from tunefarm.worker.wire import Blob, Frame, Header, WireError

_WATCH_S = 0.05
_STOOD_STILL_S = 0.5
_REAP_S = 2.0
_DYING_S = 1.0
"""How long a child that has closed its end may take to die of what it did."""
_STDERR_TAIL_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN_ENVIRONMENT = ("LD_LIBRARY_PATH",)


class Death(StrEnum):
    """How a child failed to answer."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"
    PROTOCOL = "protocol"


class ChildDied(Exception):
    """The child is gone, with the cause and the tail of its standard error."""

    def __init__(self, death: Death, message: str, stderr_tail: str) -> None:
        super().__init__(message)
        self.death = death
        self.message = message
        self.stderr_tail = stderr_tail


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """How a child is started: ``python -m module`` for a target, confined to ``memory_bytes``
    resident and to ``cores``; ``environment`` joins the few variables that it needs."""

    module: str
    target: str
    memory_bytes: int
    cores: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running helper process. One call at a time; ``kill`` may come from any thread.

    ``calls`` counts them; ``stood_still_s`` are the seconds of all of them in which this process
    itself stood still, as when its machine pauses: they count against no call's time.
    """

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._scratch = Path(tempfile.mkdtemp(prefix=f"tunefarm-{os.getpid()}-"))
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._tail: deque[int] = deque(maxlen=_STDERR_TAIL_BYTES)
        self._oom_kills = _oom_kills()
        self.calls = 0
        self.stood_still_s = 0.0
        try:
            # A thread of its own: the kernel's death signal follows the thread that starts.
            self._process = _spawner().submit(self._start, theirs).result()
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        finally:
            theirs.close()
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        self._stderr_open = True
        os.set_blocking(self._stderr, False)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        options = self._options
        environment = {
            "LANG": "C.UTF-8",
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TUNEFARM_CACHE_BYTES": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            **{k: os.environ[k] for k in _OWN_ENVIRONMENT if k in os.environ},
            "PYTHONPATH": _python_path(),
            **options.environment,
        }
        arguments = [
            str(theirs.fileno()),
            str(os.getpid()),
            str(options.memory_bytes),
            ",".join(map(str, options.cores)),
            options.target,
        ]
        return subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", options.module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self._scratch,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def call(
        self,
        header: Header,
        blobs: Sequence[Blob] = (),
        *,
        timeout_s: float,
        reply_limit_bytes: int = 1 << 20,
    ) -> Frame:
        """Send a request and wait for its reply.

        Raises ChildDied when the child crashes, exceeds its memory, says what is no answer to
        this request, or has said nothing in ``timeout_s`` seconds; in each case the child is dead
        and reaped.
        """
        self.calls += 1
        if not self.quiet:
            raise self._bury(Death.PROTOCOL, "the process sent what nobody had asked for")
        deadline = time.monotonic() + timeout_s
        nonce = secrets.token_hex(8)
        outgoing = deque(wire.encode({**header, "nonce": nonce}, blobs))
        decoder = wire.decode(reply_limit_bytes)
        buffer = next(decoder)
        try:
            while True:
                deadline = self._wait(deadline, timeout_s, writing=bool(outgoing))
                if outgoing:
                    self._write(outgoing)
                while buffer and (count := self._read(buffer)):
                    buffer = buffer[count:]
                while not buffer:
                    buffer = next(decoder)
        except StopIteration as done:
            frame: Frame = done.value
            said = dict(frame.header)
            if said.pop("nonce", None) != nonce:
                message = "the process sent the answer to another request"
                raise self._bury(Death.PROTOCOL, message) from None
            return Frame(said, frame.blobs)
        except WireError as error:
            raise self._bury(Death.PROTOCOL, f"the process sent {error}") from None
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise self._crashed() from None

    def kill(self) -> None:
        """Kill the whole process group at once; a call under way raises ChildDied."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill and reap the child, and remove its scratch directory."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        self._drain()
        self._socket.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and self._process.poll() is None

    @property
    def quiet(self) -> bool:
        """Whether nothing is waiting to be read. Between calls there is nothing, unless a
        candidate wrote to the socket."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not any(event & select.POLLIN for _, event in poll.poll(0)) or not self.alive

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the child; 0 when it is gone."""
        try:
            fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        except OSError:
            return 0
        return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0

    def stderr_tail(self) -> str:
        self._drain()
        text = bytes(self._tail).decode("utf-8", "replace")
        return wire.plain_text(text, _STDERR_TAIL_BYTES)

    def _wait(self, deadline: float, timeout_s: float, *, writing: bool) -> float:
        """Wait for the socket; kill the child when its time or memory is spent.

        Returns the deadline, later by the time in which this process itself stood still.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        if self._stderr_open:
            poll.register(self._stderr, select.POLLIN)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._bury(Death.TIMEOUT, f"no answer within {timeout_s:.3g} s")
            asked_at = time.monotonic()
            ready = [fd for fd, _ in poll.poll(1000 * min(remaining, _WATCH_S))]
            if (late_s := time.monotonic() - asked_at - _WATCH_S) > _STOOD_STILL_S:
                deadline += late_s
                self.stood_still_s += late_s
            if self._stderr in ready and not self._drain():
                poll.unregister(self._stderr)
                self._stderr_open = False
            if self.resident_bytes > self._options.memory_bytes:
                limit = self._options.memory_bytes >> 20
                raise self._bury(Death.MEMORY, f"more than {limit} MiB of memory were in use")
            if self._socket.fileno() in ready:
                return deadline

    def _write(self, outgoing: deque[memoryview]) -> None:
        while outgoing:
            try:
                sent = self._socket.send(outgoing[0])
            except BlockingIOError:
                return
            outgoing[0] = outgoing[0][sent:]
            if not outgoing[0]:
                outgoing.popleft()

    def _read(self, buffer: memoryview) -> int:
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if not count:
            raise EOFError
        return count

    def _drain(self) -> bool:
        """Take what waits on standard error (at most 1 MiB); False at its end."""
        for _ in range(16):
            try:
                data = os.read(self._stderr, 1 << 16)
            except (BlockingIOError, OSError):
                return True
            if not data:
                return False
            self._tail.extend(data)
        return True

    def _crashed(self) -> ChildDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING_S)
        code = self._process.poll()
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return self._bury(Death.MEMORY, "the kernel killed the process for lack of memory")
        return self._bury(Death.CRASH, _describe_exit(code))

    def _bury(self, death: Death, message: str) -> ChildDied:
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)
        tail = self.stderr_tail()
        self.close()
        return ChildDied(death, message, tail)


def _python_path() -> str:
    """Where children find what this process can import: its own ``PYTHONPATH``, and the packages
    that its user installed, whose home they do not have."""
    places = [os.environ.get("PYTHONPATH", "")]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return os.pathsep.join(filter(None, places))


def sweep_scratch() -> None:
    """Remove the scratch directories of workers that died before they could."""
    for path in Path(tempfile.gettempdir()).glob("tunefarm-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and _is_gone(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_gone(process: int) -> bool:
    """Whether no process has this id; those of other users count, with or without ``/proc``."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "the process closed its end without exiting"
    if code < 0:
        name = signal.strsignal(-code) or "unknown"
        return f"the process was killed by signal {-code} ({name})"
    return f"the process exited with status {code} without an answer"


def _oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


@cache
def _spawner() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="tunefarm-spawn")

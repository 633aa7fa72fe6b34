"""A farm on this machine for as long as a call lasts: tracker, worker and tuner processes.

The three are ordinary ``tunefarm`` processes. One that dies is started again, and the job goes on
from what the database holds. A tracker that already serves the database is used as it is.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from tunefarm.checks import check_host
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.db.errors import HAS_TRACKER
from tunefarm.db.records import OPEN, OWNED
from tunefarm.interrupts import ignoring_interrupts
from tunefarm.owners import is_alive, own_mark
from tunefarm.proto.logs import message_of

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient

_log = logging.getLogger(__name__)
START_S = 60.0
MAX_DRIFT = 3.0
"""How much slower than at its check this machine may be: its user works on it, and its clock falls
when it is warm. Less would make them wait; beyond, times mean nothing."""
CHECK_S = 0.2
MAX_TURN_S = 10.0
"""Of one look whether the tracker answers: what takes longer, this process itself stood still."""
MAX_STARTS = 8  # of one process within QUICK_S seconds: then it is the machine, not bad luck
QUICK_S = 60.0
FULL_BYTES = 1 << 16
EXPECTED = ("tracker listening", "its token is in", "stopped")


@dataclass
class Member:
    """One process of the farm, started again when it ends. Its output goes to a log file."""

    role: str
    arguments: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ensure(self) -> None:
        """Start the process if it does not run; TunefarmError if it dies again and again."""
        if self.runs:
            return
        now = time.monotonic()
        self.starts = [t for t in self.starts if now - t < QUICK_S] + [now]
        if len(self.starts) > MAX_STARTS or self._mistaken():
            raise TunefarmError(f"the {self.role} cannot run: {self.last_words()}")
        with self.log.open("ab") as log:
            self.process = _start(self.arguments, log)

    def came_second(self) -> bool:
        """Whether the process ended because another tracker has the database; it is forgotten."""
        from tunefarm.cli.app import IN_USE

        if self.process is None or self.process.poll() != IN_USE:
            return False
        self.process = None
        self.starts.clear()
        return True

    def _mistaken(self) -> bool:
        """Exit code 2: its options are wrong, and starting it again would not help."""
        return self.process is not None and self.process.returncode == 2

    def last_words(self) -> str:
        """The last line that the process wrote."""
        lines = self.lines()
        return message_of(lines[-1]).removeprefix("tunefarm: ") if lines else f"see {self.log}"

    def lines(self) -> list[str]:
        """What the process and those before it wrote since the farm began."""
        try:
            return self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return []

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        """End the process, and wait until it has."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _start(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # -P: a file of the user's in this folder, random.py say, must not be taken for a module.
    command = [sys.executable, "-P", "-m", "tunefarm", *arguments, "--exit-with-parent"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


class EmbeddedFarm:
    """Use as a context manager: ``client`` talks to the tracker of ``database``.

    Entering raises TargetError, before anything is started, if this machine cannot measure code of
    the target and no tracker serves the database yet.
    """

    def __init__(self, database: str, target: str) -> None:
        from tunefarm.tracker.options import TrackerOptions

        rendezvous = TrackerOptions(with_folder(database)).rendezvous_file
        if rendezvous is None:
            raise TunefarmError(
                f"an embedded farm needs a SQLite database, not {database}; "
                "start `tunefarm tracker --db URL` and give its address with --tracker"
            )
        self.rendezvous = rendezvous
        self._target = target
        name = rendezvous.name.removesuffix(".tracker.json")
        place = ["--rendezvous", str(rendezvous)]
        self.tracker = Member(
            "tracker",
            ["tracker", "--db", database, *place, "--idle-trials", "0", "--log-level", "warning"],
            rendezvous.with_name(f"{name}.tracker.log"),
        )  # fmt: skip
        self.worker = Member(
            "worker",
            ["worker", "--target", target, "--max-drift", f"{MAX_DRIFT:g}", *place],
            rendezvous.with_name(f"{name}.worker.log"),
        )
        self.tuner = Member("tuner", ["tuner", *place], rendezvous.with_name(f"{name}.tuner.log"))
        self._client: FarmClient | None = None
        self._stopping = threading.Event()
        self._failure: TunefarmError | None = None
        self._started = time.time()
        self._full = False
        self._logged = dict.fromkeys((self.tracker.role, self.worker.role, self.tuner.role), 0)
        self._guard = threading.Thread(target=self._watch, name="tunefarm-farm", daemon=True)

    @property
    def client(self) -> FarmClient:
        if self._client is None:
            raise RuntimeError("the embedded farm is not running")
        return self._client

    @property
    def is_own(self) -> bool:
        """Whether its tracker, worker and tuner are of this call, not of one that ran before."""
        return self.tracker.process is not None

    def __enter__(self) -> EmbeddedFarm:
        from tunefarm.proto.client import FarmClient

        try:
            if not self._serves():
                check_host(Target(self._target))
                self._empty_logs()
                self._own()
            self._client = FarmClient.from_rendezvous(self.rendezvous)
        except BaseException:
            with ignoring_interrupts():
                self._stop_all()
            raise
        self._guard.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ignoring_interrupts():
            self._stopping.set()
            self._guard.join()
            if self._client is not None:
                self._client.close()
            self._stop_all()
            self._log_lines()
        if error is not None and self._failure is not None:
            raise self._failure from error

    def _empty_logs(self) -> None:
        for member in (self.tracker, self.worker, self.tuner):
            try:
                member.log.write_text("")
            except OSError as error:
                raise TunefarmError(
                    f"the folder {member.log.parent} of the database cannot be written: "
                    f"{error.strerror}; choose another with --db FILE or TUNEFARM_HOME"
                ) from None

    def _serves(self) -> bool:
        """True if a tracker answers at the rendezvous."""
        return self._answering() is not None

    def _answering(self) -> int | None:
        """The process of the tracker that answers at the rendezvous; None if none does."""
        from tunefarm.proto.client import FarmClient
        from tunefarm.proto.errors import FarmError
        from tunefarm.proto.rendezvous import read_rendezvous

        if not self.rendezvous.exists():
            return None
        try:
            with FarmClient.from_rendezvous(self.rendezvous) as client:
                client.info()
            return read_rendezvous(self.rendezvous).pid
        except FarmError:
            return None

    def _own(self) -> None:
        """Start the processes and wait until the tracker answers. Of several commands that begin at
        once the tracker of one has the database, whose worker and tuner serve all of them."""
        self.tracker.ensure()
        waited_s, looked = 0.0, time.monotonic()
        while (answering := self._answering()) is None:
            if not self.tracker.came_second():
                self.tracker.ensure()
            if waited_s > START_S:
                raise TunefarmError(f"the tracker did not answer: {self.tracker.last_words()}")
            time.sleep(CHECK_S)
            waited_s += min(time.monotonic() - looked, MAX_TURN_S)
            looked = time.monotonic()
        if not self._is_ours(answering):
            self.tracker.stop()
            self.tracker.process = None
            return
        self._cancel_orphans()
        self.worker.ensure()
        self.tuner.ensure()

    def _is_ours(self, answering: int | None) -> bool:
        """Whether the tracker that answers is the one that was started here."""
        process = self.tracker.process
        return process is not None and process.pid == answering

    def _cancel_orphans(self) -> None:
        """End the jobs of commands that were killed, and of earlier calls of this process that
        could not end theirs; their trials are kept and count."""
        from tunefarm.proto.client import FarmClient

        with FarmClient.from_rendezvous(self.rendezvous) as client:
            for job in client.jobs(OPEN):
                mark = job.options.get(OWNED, "")
                is_before = mark == own_mark() and job.created_at < self._started
                if mark and (is_before or not is_alive(mark)):
                    client.cancel(job.id, "the command that made it was killed")

    def _watch(self) -> None:
        said = 0
        while not self._stopping.wait(CHECK_S):
            said = self._relay(said)
            self._log_lines()
            try:
                if self.is_own or not self._serves():
                    self._mend()
            except TunefarmError as failure:
                self._failure = failure
                if self._client is not None:
                    self._client.close()
                return

    def _mend(self) -> None:
        """Start again what has died: worker and tuner as soon as the tracker answers."""
        if self.tracker.came_second():
            return
        self.tracker.ensure()
        members = (self.worker, self.tuner)
        if not all(member.runs for member in members) and self._is_ours(self._answering()):
            for member in members:
                member.ensure()

    def _relay(self, said: int) -> int:
        """Tell the user what the tracker complains of; returns the lines told so far."""
        if self.tracker.process is None:
            return 0
        lines = self.tracker.lines()
        for line in lines[said:]:
            if not line.startswith(EXPECTED) and HAS_TRACKER not in line:
                warnings.warn(f"the tracker says: {message_of(line)}", stacklevel=1)
        folder = self.rendezvous.parent
        is_full = shutil.disk_usage(folder).free < FULL_BYTES  # then its log cannot tell
        if is_full and not self._full:
            warnings.warn(f"the disk of {folder} is full; tuning waits for space", stacklevel=1)
        self._full = is_full
        return len(lines)

    def _log_lines(self) -> None:
        """Log what its processes have logged since the last look, for whoever wants all of it."""
        if not self.is_own or not _log.isEnabledFor(logging.DEBUG):
            return
        for member in (self.tracker, self.worker, self.tuner):
            lines = member.lines()
            for line in lines[self._logged[member.role] :]:
                _log.debug("%s: %s", member.role, message_of(line))
            self._logged[member.role] = len(lines)

    def _stop_all(self) -> None:
        for member in (self.tuner, self.worker):
            member.terminate()
        for member in (self.tuner, self.worker, self.tracker):
            member.stop()


def with_folder(database: str) -> str:
    """The database, its folder made if that is the user's data folder, which need not exist yet.

    TunefarmError if another folder does not exist: a path with a slip of the pen in it would get
    folders of that name.
    """
    from tunefarm.compiler import settings
    from tunefarm.db.dialect import check_folder, parse_url, sqlite_path

    path = sqlite_path(parse_url(database))
    if path is None:
        return database
    if path.parent != settings.HOME.get().absolute():
        check_folder(path)
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TunefarmError(
                f"cannot make the folder {path.parent} of the database: {error.strerror}; name "
                "another in TUNEFARM_HOME, or a database with --db"
            ) from None
    return database

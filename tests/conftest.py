"""Options of the whole suite; programs of the loop IR are verified in all of it. A PostgreSQL of
its own, for the tests of databases."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.patience import turns
from tests.standstill import Standstill

# The same examples in every run: a landing must not depend on luck, nor on how long the machine
# stood still while an example was drawn.
settings.register_profile(
    "tunefarm",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# Nor on what other tests have imported: it would draw the constants of all modules there are.
providers._get_local_constants = providers.Constants


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Standstill().start())
    os.environ.setdefault("TUNEFARM_VERIFY", "1")
    os.environ.setdefault("TUNEFARM_CONFIG", os.devnull)  # not the defaults of who runs them
    settings.load_profile("tunefarm")
    # A background job of a script ignores Ctrl-C, and what it starts would: the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A run that is ended ends what its fixtures started: trackers would go on for ever.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the printed programs that golden tests compare with",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is that of ``golden/name.txt`` beside the test."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run with --update-golden and review it"
        assert text == path.read_text()

    return compare


# --- PostgreSQL ---------------------------------------------------------------------------------

_USER = "postgres"
_SERVER_OPTIONS = ("fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=200")


@dataclass
class Postgres:
    """A server that listens on a Unix socket in ``folder``; ``start`` again after ``kill``."""

    folder: Path
    command: list[str]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    server: "subprocess.Popen[bytes] | None" = None

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://{_USER}@/{name}?host={self.folder}"

    def run(self, statement: str) -> None:
        import psycopg

        place = f"host={self.folder} user={_USER} dbname=postgres"
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute(statement)

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a database of its own, a copy of ``template``, for as long as it is used."""
        name = f"test{next(self.numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield self.url(name)
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self) -> None:
        """Run the server until it answers; it refuses while processes of a killed one are left. It
        ends with the thread that starts it, however that ends."""
        log = self.folder / "log"
        for _ in turns(lambda: f"PostgreSQL: {log.read_text()}"):
            if self._answers():
                return
            if self.server is None or self.server.poll() is not None:
                with log.open("a") as told:
                    self.server = subprocess.Popen(
                        self.command, stderr=told, cwd=self.folder, start_new_session=True
                    )
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the server's first process; the others find out and end."""
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def stop(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGINT)
        self.server.wait(60)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL, fast and forgetful; its database ``latest`` has the present schema."""
    with _postgres() as running:
        yield running


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """The same for one test alone, which may kill it."""
    with _postgres() as running:
        yield running


@contextmanager
def _postgres() -> Iterator[Postgres]:
    from tunefarm.db import dialect
    from tunefarm.db.store import Store

    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed; apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-postgres-", dir="/tmp"))
    owner: tuple[str, ...] = ()
    if os.getuid() == 0:
        shutil.chown(folder, _USER, _USER)
        owner = (f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")
    folder.chmod(0o755)
    data = str(folder / "data")
    prepare = [programs / "initdb", "--no-sync", "--auth=trust", "-U", _USER, "-D", data]
    prepare += ["--encoding=UTF8", "--locale=C"]
    subprocess.run(["setpriv", *owner, *prepare], check=True, capture_output=True, cwd=folder)
    options = itertools.chain.from_iterable(("-c", option) for option in _SERVER_OPTIONS)
    command = ["setpriv", "--pdeathsig=INT", *owner, str(programs / "postgres"), "-D", data]
    running = Postgres(folder, [*command, "-k", str(folder), *options])
    # A tracker repeats the write that a pause of the machine cost; stores of tests do not.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "STILL_S", 600.0)
        try:
            running.start()
            running.run("CREATE DATABASE latest")
            Store.open(running.url("latest")).close()
            yield running
        finally:
            running.stop()
            shutil.rmtree(folder)


def _postgres_programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL, or that of the one in PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    found = sorted(debian, key=lambda path: float(path.parts[-3]))
    named = shutil.which("postgres")
    found += [Path(named).resolve()] if named else []
    return found[-1].parent if found else None

"""Finding the farm: a tracker's address, or the rendezvous file of one on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from tunefarm.db.records import Job
    from tunefarm.db.store import Store
    from tunefarm.proto.client import FarmClient
    from tunefarm.proto.rendezvous import Rendezvous
    from tunefarm.proto.tls import Tls

_SUFFIX = ".tracker.json"
_HERE = ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "::", "[::]", "")
"""Hosts that mean this machine, or any: from another they lead nowhere."""


def connect(tracker: str, token: str = "") -> FarmClient:
    """A client of ``HOST:PORT``, or of the tracker that wrote a rendezvous file.

    Without a token, the one of the environment is used, else that of this machine's tracker at the
    same address if there is one. Raises TrackerUnavailable (one sentence) if none answers.
    """
    from tunefarm.proto.client import FarmClient

    if is_file(tracker):
        path = Path(tracker).expanduser()
        check_running(path)
        client = FarmClient.from_rendezvous(path)
    else:
        client = FarmClient(tracker, token or token_for(tracker), tls=own_tls())
    client.info()
    return client


def place_of(tracker: str) -> tuple[str, Tls | None]:
    """The address of a tracker, or of the first of several, and what connections there bring.

    FarmError if a file that is named says neither.
    """
    from tunefarm.proto.rendezvous import read_rendezvous

    if is_file(tracker):
        found = read_rendezvous(Path(tracker).expanduser())
        address, tls = found.address, found.tls
    else:
        address, tls = tracker, own_tls()
    return address.split(",")[0], tls


def check_running(rendezvous: Path) -> None:
    """TrackerUnavailable if the tracker of a rendezvous file is gone: the address in it would say
    nothing to anybody."""
    from tunefarm.proto.errors import TrackerUnavailable
    from tunefarm.proto.rendezvous import read_rendezvous

    if rendezvous.exists():
        found = read_rendezvous(rendezvous)
        if found.is_elsewhere or found.is_running:
            return
    database = rendezvous.with_name(rendezvous.name.removesuffix(_SUFFIX))
    if database == rendezvous:
        if rendezvous.exists():
            raise TrackerUnavailable(f"no tracker runs that wrote {rendezvous}; start it again")
        raise TrackerUnavailable(f"there is no {rendezvous}; a tracker writes it when it starts")
    option = "" if rendezvous == default_rendezvous() else f" --db {shlex.quote(str(database))}"
    raise TrackerUnavailable(
        f"no farm runs for {database}; start one with `tunefarm tracker{option}`"
    )


def is_file(tracker: str) -> bool:
    """Whether a tracker is named by its rendezvous file, not by its address."""
    path = Path(tracker).expanduser()
    return path.suffix == ".json" or path.is_file()


@contextmanager
def announced(rendezvous: Path | None) -> Iterator[Callable[[Rendezvous], None]]:
    """What a tracker calls when it listens: it says where its token is, and leaves a copy in this
    user's data folder for as long as it runs, so that its address is enough for local commands."""
    from tunefarm.compiler import settings
    from tunefarm.proto.rendezvous import write_rendezvous

    copies: list[Path] = []
    home = settings.HOME.get()

    def announce(found: Rendezvous) -> None:
        if rendezvous is None or rendezvous.absolute().parent != home.absolute():
            leave_copy(found)
        if rendezvous is not None:
            print(f"its token is in {rendezvous}", flush=True)

    def leave_copy(found: Rendezvous) -> None:
        copy = home / f"{found.address.replace(':', '_')}{_SUFFIX}"
        try:
            home.mkdir(parents=True, exist_ok=True)
            write_rendezvous(copy, found)
        except OSError as error:
            print(f"tunefarm: no copy of the token in {home}: {error.strerror}", file=sys.stderr)
        else:
            copies.append(copy)

    try:
        yield announce
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)


def token_for(tracker: str) -> str:
    """The token to show to the tracker at an address: that of the environment or, of a tracker of
    this machine, its own."""
    from tunefarm.compiler import settings
    from tunefarm.proto.rendezvous import read_token

    file = settings.TOKEN_FILE.get()
    return settings.TOKEN.get() or (read_token(file) if file else local_token(tracker))


def own_tls() -> Tls | None:
    """What connections to a tracker at an address bring, as the environment says."""
    from tunefarm.compiler import settings
    from tunefarm.proto.tls import Tls

    return Tls.read(settings.TLS_CA.get(), settings.TLS_CERT.get(), settings.TLS_KEY.get())


def local_token(tracker: str) -> str:
    """The token of the tracker at an address, from the rendezvous files of this user."""
    for found in _own_trackers():
        if found.address in tracker.split(","):
            return found.token
    return ""


def _own_trackers() -> Iterator[Rendezvous]:
    """What trackers of this user's have told in the data folder, those that are gone too."""
    from tunefarm.compiler import settings
    from tunefarm.proto.errors import FarmError
    from tunefarm.proto.rendezvous import read_rendezvous

    for path in sorted(settings.HOME.get().glob(f"*{_SUFFIX}")):
        with suppress(FarmError):
            yield read_rendezvous(path)


def default_rendezvous() -> Path:
    """The rendezvous file of the tracker over the default database."""
    from tunefarm.api import default_database

    path = rendezvous_of(default_database())
    assert path is not None
    return path


def rendezvous_of(database: str) -> Path | None:
    """Where the tracker of a SQLite database tells its address; None for other databases."""
    from tunefarm.tracker.options import default_rendezvous as beside

    return beside(database)


# --- the tracker of a database -------------------------------------------------------------------


def finder(store: Store, tracker: str = "") -> Callable[[], Rendezvous | None]:
    """What finds the tracker of a database that is open: the one that is named, else as far as this
    machine knows, with the tracker's own token if that is known here. It answers None where none
    is, and raises FarmError for a file that cannot be used."""
    if tracker:
        return lambda: _named(tracker)
    file = rendezvous_of(store.url.render_as_string(hide_password=False))
    if file is not None:
        return lambda: _of_file(file)
    return lambda: _of_shared(store)


def how_to_find(store: Store) -> str:
    """What to do where no tracker of the database is known."""
    if store.is_shared:
        return (
            "No tracker of this database is known here: to cancel jobs and to tune them further, "
            "name it with `tunefarm dashboard --tracker HOST:PORT`."
        )
    return (
        "No tracker serves this database now: while `tunefarm tracker` runs on it, jobs can be "
        "cancelled and tuned further here."
    )


def _named(tracker: str) -> Rendezvous | None:
    from tunefarm.proto.rendezvous import Rendezvous

    if is_file(tracker):
        return _of_file(Path(tracker).expanduser())
    return _reached(Rendezvous(tracker, local_token(tracker)))


def _of_file(file: Path) -> Rendezvous | None:
    """The tracker of a file that it wrote itself, or, without the token, of one that was carried
    here: the token in that is not the tracker's own."""
    from tunefarm.proto.rendezvous import read_rendezvous

    found = read_rendezvous(file)
    if found.is_elsewhere:
        return replace(found, token="")
    return found if found.is_running else None


def _of_shared(store: Store) -> Rendezvous | None:
    """A tracker of this user's on this machine; else those that say in the database where they
    listen for others, which takes TLS: whoever listens on an address in the clear may be anybody.
    """
    from tunefarm.db import replicas
    from tunefarm.db.errors import StoreError
    from tunefarm.proto.rendezvous import Rendezvous

    for found in _own_trackers():
        if found.is_running and _is_same(found.database, store.url):
            return found
    try:
        with store.reading() as connection:
            listed = replicas.addresses(connection)
    except StoreError:
        return None
    away = [address for address in listed if address.rpartition(":")[0] not in _HERE]
    found = _reached(Rendezvous(",".join(away), token=""))
    return found if away and found.tls is not None else None


def _reached(found: Rendezvous) -> Rendezvous:
    """A tracker with what the environment says of connections with TLS."""
    from tunefarm.proto.tls import SYSTEM

    tls = own_tls()
    if tls is None:
        return found
    return replace(found, ca=tls.ca or SYSTEM, certificate=tls.certificate, key=tls.key)


def _is_same(database: str, url: URL) -> bool:
    """Whether a tracker's database is that of the URL, whoever asks and by whichever driver."""
    from tunefarm.db.dialect import parse_url
    from tunefarm.db.errors import StoreError

    def place(of: URL) -> tuple[object, ...]:
        return (of.get_backend_name(), of.host, of.port, of.database, of.query.get("host"))

    try:
        return place(parse_url(database)) == place(url)
    except StoreError:
        return False


def connect_local(tracker: str, rendezvous: Path | None) -> FarmClient:
    """A client of the tracker that the command line names, by default this user's own."""
    return connect(tracker or str(rendezvous or default_rendezvous()))


def device_peak(tracker: str, database: str) -> Callable[[Job], float | None]:
    """What tells the FLOP/s that a job's devices reach at most, asked of the farm on each call."""

    def ask(job: Job) -> float | None:
        from tunefarm.api import default_database
        from tunefarm.proto.errors import FarmError
        from tunefarm.tracker.options import TrackerOptions
        from tunefarm.updates import peak_of

        place = tracker or str(TrackerOptions(database or default_database()).rendezvous_file)
        try:
            with connect(place) as client:
                return peak_of(client.devices(), job.target)
        except FarmError:
            return None

    return ask

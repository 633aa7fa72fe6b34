"""One database, opened: migrated if it is ours to write, read-only otherwise.

The functions of ``trials``, ``best``, ``jobs``, ``leases`` and ``queue`` take a connection; the
tracker runs them in its writer thread. The methods here are for everybody else: the command line
and builds that read a database directly, imports, tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from tunefarm.db import best, stored_jobs, trials
from tunefarm.db.dialect import (
    check_file,
    parse_url,
    reader_engine,
    sqlite_path,
    told,
    writer_engine,
)
from tunefarm.db.errors import StoreError
from tunefarm.db.lookup import Compatible, same_code
from tunefarm.db.migrate import HEAD, schema_version, upgrade
from tunefarm.db.records import (
    BestKey,
    Collected,
    Final,
    Found,
    History,
    Job,
    JobState,
    Progress,
    Promotion,
    TaskKey,
    Trial,
    WorkloadRecord,
)
from tunefarm.db.rows import add_workloads


class Store:
    """A database of records. Use ``open``; every method raises StoreError if it cannot be used.
    Several trackers may serve one that ``is_shared``."""

    def __init__(self, url: URL, writer: Engine | None, reader: Engine) -> None:
        self.url = url
        self.is_shared = sqlite_path(url) is None
        self._writer = writer
        self._reader = reader

    @staticmethod
    def open(url: str, *, readonly: bool = False) -> Store:
        """The database at ``url`` (a URL, or the path of a SQLite file).

        To write, it is created or upgraded as needed; to read, it has to be there. StoreError
        says in one sentence why it cannot: missing, no database, corrupt, newer, locked, …
        """
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None:
            check_file(path, writing=not readonly)
        writer = None if readonly else writer_engine(parsed)
        store = Store(parsed, writer, reader_engine(parsed))
        try:
            store._check_schema()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """The database as people know it: its path, or its URL without the password."""
        path = sqlite_path(self.url)
        return str(path) if path else self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections: the writing one last, since only it can move what is in a SQLite
        file's ``-wal`` into the file."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that may write; commits at the end, or rolls all of it back."""
        if self._writer is None:
            raise StoreError(f"database {self.name} was opened to read only")
        with told(self.url), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view of what is committed."""
        with told(self.url), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def watching(self) -> Iterator[Callable[[], int | None]]:
        """What tells for next to nothing whether somebody wrote: a number that differs once others
        did; None of a database that has no such number."""
        if self.is_shared:
            yield lambda: None
            return
        with told(self.url), self._reader.connect() as connection:
            yield lambda: int(connection.exec_driver_sql("PRAGMA data_version").scalar_one())

    def _check_schema(self) -> None:
        """Create or upgrade the schema of a writer's database; refuse what cannot be read."""
        if self._writer is None:
            with self.reading() as connection:
                version = schema_version(connection, self.name)
            if version != HEAD:
                raise StoreError(
                    f"database {self.name} has schema {version or 'none'}, this tunefarm reads "
                    f"{HEAD}; `tunefarm db upgrade` brings it there, and so does any tracker"
                )
            return
        with self.writing() as connection:
            if schema_version(connection, self.name) != HEAD:
                upgrade(connection)

    # --- records --------------------------------------------------------------------------------

    def add_workloads(self, workloads: Iterable[WorkloadRecord]) -> None:
        """Store workload texts; known ones stay."""
        with self.writing() as connection:
            add_workloads(connection, workloads)

    def add_trials(self, new: Sequence[Trial]) -> tuple[Trial, ...]:
        """Store the trials whose (job, task, number) is new, in order; returns those."""
        with self.writing() as connection:
            return trials.add(connection, new)

    def best(
        self, keys: Iterable[BestKey], compatible: Compatible = same_code
    ) -> dict[BestKey, tuple[Found, ...]]:
        """What is known for each key in one query, closest first: same device model, same target,
        compatible target; within each the promoted before the provisional."""
        with self.reading() as connection:
            return best.lookup(connection, keys, compatible)

    def promote(self, request_id: str, final: Final) -> Promotion:
        """Store a final and swap its winner in; UnknownRecord if its trials are not stored."""
        with self.writing() as connection:
            return best.promote(connection, request_id, final)

    def history(
        self,
        target: str = "",
        cursor: int = 0,
        *,
        workloads: Sequence[str] = (),
        limit: int = 1000,
    ) -> History:
        """A page of trials of all jobs, newest first; the cursor goes into the next call."""
        with self.reading() as connection:
            return trials.history(connection, target, workloads, cursor, limit)

    def trials_of(self, job: str, cursor: int = 0, limit: int = 1000) -> Collected:
        """Trials of a job stored after ``cursor``, in storage order."""
        with self.reading() as connection:
            return trials.of_job(connection, job, cursor, limit)

    def task_stats(self, tasks: Sequence[TaskKey]) -> dict[TaskKey, Progress]:
        """Counts and latencies of tasks over all jobs; zeros for tasks without a trial."""
        with self.reading() as connection:
            return trials.task_progress(connection, tasks)

    def count_candidates(
        self,
        tasks: Iterable[TaskKey],
        compiler_version: str = "",
        device_model: str = "",
        protocol: str = "",
    ) -> int:
        """How many candidates of these tasks are stored; see ``trials.count_candidates``."""
        with self.reading() as connection:
            return trials.count_candidates(
                connection, tasks, compiler_version, device_model, protocol
            )

    def count_trials(self) -> int:
        with self.reading() as connection:
            return trials.count(connection)

    def jobs(self, states: Iterable[JobState] = (), limit: int = 100) -> tuple[Job, ...]:
        """The latest jobs in these states (all if none is named), newest first."""
        with self.reading() as connection:
            return stored_jobs.recent(connection, states, limit)

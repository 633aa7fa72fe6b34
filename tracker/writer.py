"""All writes in one thread, many to a transaction; reads in a few others. Never the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from tunefarm.db.errors import (
    NotYours,
    StaleClaim,
    StaleIncarnation,
    StaleLease,
    StoreError,
    UnknownRecord,
)
from tunefarm.db.store import Store
from tunefarm.tracker.counts import Seconds

T = TypeVar("T")
GROUP = 64
"""Operations that one commit may carry."""

_REFUSALS = (
    StaleLease,
    StaleClaim,
    StaleIncarnation,
    UnknownRecord,
    NotYours,
    IntegrityError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class _Operation:
    run: Callable[[Connection], Any]
    future: Future[Any]
    asked_at: float = field(default_factory=time.monotonic)


class Database:
    """The store, for the event loop: ``write`` and ``read`` take functions of a connection.

    An operation that raises changes nothing; the others of its commit go through. ``write``
    returns once the commit has happened. ``durations`` is from being asked to that, counted by the
    writer's thread, and ``trouble`` says why the last commit failed; it is empty if it did not.
    """

    def __init__(self, store: Store) -> None:
        self.durations = Seconds()
        self.trouble = ""
        self._store = store
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closed = False
        self._readers = ThreadPoolExecutor(2, "tunefarm-read")
        self._thread = threading.Thread(target=self._run, name="tunefarm-write")
        self._thread.start()

    @property
    def is_shared(self) -> bool:
        """Whether other trackers may serve the same database."""
        return self._store.is_shared

    async def write(self, operation: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StoreError("the tracker is shutting down")
        future: Future[T] = Future()
        self._queue.put(_Operation(operation, future))
        return await asyncio.wrap_future(future)

    @property
    def waiting(self) -> int:
        """How many writes are queued."""
        return self._queue.qsize()

    async def read(self, operation: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._store.reading() as connection:
                return operation(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    def close(self) -> None:
        """Finish what is queued, then close the store."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._readers.shutdown()
        self._store.close()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            group, last = self._next_group()
            if group:
                self._commit(group)
            if last:
                return

    def _next_group(self) -> tuple[list[_Operation], bool]:
        """The operations that wait (at least one), and whether the end was asked for."""
        group: list[_Operation] = []
        item = self._queue.get()
        while item is not None:
            group.append(item)
            if len(group) == GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Operation]) -> None:
        wanted = [o for o in group if o.future.set_running_or_notify_cancel()]
        try:
            self._commit_together(wanted)
        finally:
            now = time.monotonic()
            for operation in wanted:
                self.durations.add(now - operation.asked_at)

    def _commit_together(self, wanted: list[_Operation]) -> None:
        if len(wanted) == 1:
            return self._commit_alone(wanted[0])
        outcomes = self._outcomes(wanted)
        if outcomes is None:
            for operation in wanted:
                self._commit_alone(operation)
            return
        self.trouble = ""
        for operation, (result, refusal) in zip(wanted, outcomes, strict=True):
            _settle(operation, result, refusal)

    def _outcomes(self, wanted: list[_Operation]) -> list[tuple[Any, BaseException | None]] | None:
        """(result, refusal) of each operation in one transaction; None if that failed.

        Savepoints, two statements for each operation, are for groups in which one is refused.
        """
        try:
            try:
                with self._store.writing() as connection:
                    return [(operation.run(connection), None) for operation in wanted]
            except _REFUSALS:
                with self._store.writing() as connection:
                    return [_attempt(connection, operation) for operation in wanted]
        except BaseException:
            return None

    def _commit_alone(self, operation: _Operation) -> None:
        """Run an operation in a transaction of its own; twice if it has to be, as the connection to
        a server may have ended."""
        for is_last in (False, True) if self.is_shared else (True,):
            try:
                with self._store.writing() as connection:
                    result = operation.run(connection)
            except BaseException as error:
                if is_last or isinstance(error, _REFUSALS):
                    if isinstance(error, StoreError):
                        self.trouble = str(error)
                    operation.future.set_exception(error)
                    return
                continue
            self.trouble = ""
            operation.future.set_result(result)
            return


def _attempt(connection: Connection, operation: _Operation) -> tuple[Any, BaseException | None]:
    """(result, refusal) of an operation inside the group's transaction."""
    savepoint = connection.begin_nested()
    try:
        result = operation.run(connection)
    except _REFUSALS as refusal:
        savepoint.rollback()
        return None, refusal
    savepoint.commit()
    return result, None


def _settle(operation: _Operation, result: Any, refusal: BaseException | None) -> None:
    if refusal is not None:
        operation.future.set_exception(refusal)
    else:
        operation.future.set_result(result)

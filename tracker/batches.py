"""Many small wishes, one write: what comes while a write is under way goes into the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batches(Generic[T]):
    """``await batches(wish)`` returns once ``carry_out`` has done it, with those that waited
    beside it; an error of that call is the error of each of them."""

    def __init__(self, carry_out: Callable[[list[T]], Awaitable[None]]) -> None:
        self._carry_out = carry_out
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, wish: T) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wish, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await self._carry_out([wish for wish, _ in batch])
            except Exception as raised:
                error = raised
            for _, done in batch:
                if not done.done():
                    done.set_result(None) if error is None else done.set_exception(error)
        self._task = None

"""Batches: what comes while a write is under way goes into the next."""

from __future__ import annotations

import asyncio

from tunefarm.tracker.batches import Batches


def test_wishes_that_come_during_a_write_go_together_into_the_next() -> None:
    written: list[list[int]] = []

    async def write(wishes: list[int]) -> None:
        written.append(wishes)
        await asyncio.sleep(0)
        if 3 in wishes:
            raise ValueError("not three")

    async def main() -> list[object]:
        batches = Batches(write)
        first = asyncio.create_task(batches(1))
        while not written:
            await asyncio.sleep(0)
        rest = [asyncio.create_task(batches(wish)) for wish in (2, 3)]
        outcomes = await asyncio.gather(first, *rest, return_exceptions=True)
        await batches(4)
        return list(outcomes)

    outcomes = asyncio.run(main())
    assert written == [[1], [2, 3], [4]]
    assert outcomes[0] is None
    assert [str(error) for error in outcomes[1:]] == ["not three", "not three"]

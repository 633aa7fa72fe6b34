"""The pool of a device's memory: blocks come back, and go back to the driver when they must."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from tunefarm.compiler.runtime.cuda.driver import DeviceMemoryError
from tunefarm.compiler.runtime.cuda.emulated import EmulatedDevice
from tunefarm.compiler.runtime.cuda.memory import Pool, block_size

MEMORY_BYTES = 4 << 20


@pytest.fixture
def pool() -> Pool:
    device = EmulatedDevice()
    device.properties = replace(device.properties, memory_bytes=MEMORY_BYTES)
    return Pool(device)


def test_a_dropped_block_serves_the_next(pool: Pool) -> None:
    first = pool.take(1000)
    address = first.address
    assert address % 256 == 0
    assert pool.take(1000).address != address
    del first
    gc.collect()
    assert {pool.take(1000).address, pool.take(900).address} & {address}
    assert pool.held_bytes == 2 * 1024


def test_bytes_are_counted(pool: Pool) -> None:
    blocks = [pool.take(count) for count in (0, 1, 5000, 1 << 20)]
    assert pool.free_bytes == 0
    assert pool.held_bytes == 256 + 256 + 5120 + (1 << 20)
    assert pool.device.free_bytes() == MEMORY_BYTES - pool.held_bytes
    blocks.clear()
    gc.collect()
    assert pool.free_bytes == pool.held_bytes
    assert pool.free_bytes == pool.held_bytes
    pool.trim()
    assert pool.held_bytes == 0
    assert pool.device.free_bytes() == MEMORY_BYTES


def test_what_is_kept_makes_room(pool: Pool) -> None:
    block = pool.take(600 << 12)
    with pytest.raises(DeviceMemoryError, match=r"device 0, emulated sm_90a, has \d+ bytes left"):
        pool.take(500 << 12)
    del block
    gc.collect()
    assert pool.take(500 << 12).size_bytes == 500 << 12
    assert pool.held_bytes == block_size(500 << 12)


@pytest.mark.parametrize("size", [0, 1, 256, 257, 4097, 100_000, (1 << 30) + 1])
def test_blocks_waste_at_most_an_eighth(size: int) -> None:
    block = block_size(size)
    assert block % 256 == 0
    assert size <= block <= max(size * 9 / 8, size + 255, 256)
    assert block_size(block) == block

"""Where memory lies: that of modules, and results that are timed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.arrays import ALIGNMENT, address, empty_apart, lasting_bytes

STATUS = Path("/proc/self/status")


@pytest.mark.skipif(not STATUS.exists(), reason="this system has no /proc")
def test_a_tail_of_a_huge_page_takes_no_whole_one() -> None:
    def resident() -> int:
        return int(re.findall(r"VmRSS:\s+(\d+)", STATUS.read_text())[0]) << 10

    count, before = (2 << 20) + 100_000, resident()
    memory = lasting_bytes(count)
    memory[:] = 1
    assert memory.nbytes == count
    assert address(memory) % 4096 == 0
    assert resident() - before < count + (1 << 20)


@pytest.mark.parametrize("offset", [0, 64, 100, 4000])
def test_a_result_begins_in_other_sets_of_the_caches(offset: int) -> None:
    operand = np.empty(1 << 16, np.uint8)[offset:]
    tensor = TensorType((300, 7), "float32")
    for _ in range(3):
        result = empty_apart(tensor, operand)
        assert (result.shape, result.dtype) == ((300, 7), np.float32)
        assert address(result) % ALIGNMENT == 0
        assert (address(result) - address(operand)) % 1024 in range(896, 896 + ALIGNMENT)
        result[...] = 1.0

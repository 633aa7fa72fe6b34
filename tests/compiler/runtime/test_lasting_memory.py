"""Memory that lives as long as a module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tunefarm.compiler.runtime.arrays import address, lasting_bytes

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

"""Memory of modules: where the system has huge pages, it may use them."""

import re
from pathlib import Path

import pytest
from tunefarm.compiler.runtime.arrays import address, lasting_bytes

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(), reason="no huge pages here"
)
@pytest.mark.parametrize("count", [1 << 20, (5 << 20) + 1])
def test_lasting_bytes_may_lie_on_huge_pages(count: int) -> None:
    memory = lasting_bytes(count)
    assert len(memory) == count
    assert address(memory) % (2 << 20) == 0
    assert _mapping(address(memory))["THPeligible"] == "1"


def _mapping(place: int) -> dict[str, str]:
    """What Linux says of the mapping that an address lies in."""
    said = Path("/proc/self/smaps").read_text()
    parts = re.split(r"^([0-9a-f]+)-([0-9a-f]+) .*\n", said, flags=re.MULTILINE)
    for first, end, lines in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if int(first, 16) <= place < int(end, 16):
            pairs = (line.split(":", 1) for line in lines.splitlines())
            return {name: value.strip() for name, value in pairs}
    raise AssertionError(f"no mapping holds {place:#x}")

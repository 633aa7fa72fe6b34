"""Devices under test: real children, with a plug-in whose kernels misbehave."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tunefarm.compiler.target import plugin_kinds
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The test plug-ins on the path of this process; caches and core locks of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGINS))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        plugin_kinds.cache_clear()
        yield PLUGINS
    plugin_kinds.cache_clear()


@pytest.fixture(scope="module")
def hostile(plugins: Path) -> Iterator[OpenDevice]:
    """A device whose kernels attack, with 512 MiB of memory for each child."""
    device = open_device(
        DeviceOptions(
            "hostile -num-cores=1",
            build_processes=1,
            memory_bytes=512 << 20,
            environment={"PYTHONPATH": str(plugins)},
            max_drift=0,
        )
    )
    yield device
    device.close()

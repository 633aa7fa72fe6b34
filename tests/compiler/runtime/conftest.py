from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tunefarm.compiler.target import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))


@pytest.fixture(scope="session")
def programs() -> ModuleType:
    """The hand-written kernels of ``programs.py``, which stands beside this file."""
    path = Path(__file__).with_name("programs.py")
    spec = importlib.util.spec_from_file_location("runtime_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def target() -> Target:
    return Target.host()


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An object cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNEFARM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

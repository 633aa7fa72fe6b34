"""What shuts in the runners of GPUs, and what of it a user can leave out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tunefarm.compiler.settings import GPU_SANDBOX, SettingError
from tunefarm.worker.sandbox import mechanisms

HERE = {name.partition("-")[0] for name in mechanisms()}
CONFINED = """
from tunefarm.worker.child import Service, confine
from tunefarm.worker.cuda.policy import GPU
from tunefarm.worker.sandbox import HOST, limit
import os

limit(os.getppid())
policy = {"gpu": GPU, "host": HOST}[os.environ["KIND"]]
print(*confine(Service({}, candidates=True, policy=policy)))
"""


@pytest.mark.parametrize(
    ("kind", "said", "left"),
    [
        ("gpu", "", {"landlock", "seccomp"}),
        ("gpu", "seccomp", {"seccomp"}),
        ("gpu", "none", set()),
        ("host", "none", {"landlock", "seccomp"}),
    ],
)
def test_a_part_of_the_sandbox_of_gpus_can_be_left_out(
    kind: str, said: str, left: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONFINED],
        env={**os.environ, "KIND": kind, GPU_SANDBOX.name: said},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) == left & HERE


def test_a_sandbox_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_SANDBOX.name, "chroot")
    with pytest.raises(SettingError, match=r"expected landlock\+seccomp, one of them, or none"):
        GPU_SANDBOX.get()

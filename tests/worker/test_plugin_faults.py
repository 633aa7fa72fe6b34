"""What a worker makes of plug-ins that fail, and of those that it lacks."""

from __future__ import annotations

import os

import pytest
from tunefarm.compiler.errors import PluginError
from tunefarm.db.records import ErrorKind
from tunefarm.worker.child import answer
from tunefarm.worker.children import Builder
from tunefarm.worker.measure import TrialFailed
from tunefarm.worker.process import ChildOptions
from tunefarm.worker.wire import Frame, Header


def test_a_fault_is_a_sentence_and_its_traceback_goes_to_the_trial(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def build(_: Frame) -> tuple[Header, tuple[()]]:
        try:
            return {}["rows"]
        except KeyError as error:
            raise PluginError("sketch 'odd' of plug-in odd 0.1 failed: KeyError") from error

    header, _ = answer({"build": build}, Frame({"op": "build"}, []), "build_error")
    assert header == {
        "error": "build_error",
        "message": "sketch 'odd' of plug-in odd 0.1 failed: KeyError",
    }
    assert 'return {}["rows"]' in capfd.readouterr().err


def test_a_candidate_of_another_plugin_is_no_fault_of_its_own() -> None:
    core = min(os.sched_getaffinity(0))
    target = "llvm -num-cores=1"
    builder = Builder(ChildOptions("tunefarm.worker.builder", target, 1 << 30, (core,)))
    try:
        with pytest.raises(TrialFailed, match=r"odd==9[+]0 is wanted, and it is") as failed:
            builder.build("{}", target, {}, 60.0, ("odd==9+0",))
    finally:
        builder.close()
    assert failed.value.kind is ErrorKind.DEVICE_LOST

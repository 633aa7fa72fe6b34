"""How values look in a notebook: whole HTML, of the page's own colours, with texts as texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from tunefarm.compiler.dispatch import History
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db.records import (
    Best,
    BestKey,
    Budget,
    ErrorKind,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Progress,
    TaskKey,
    Trial,
    Verdict,
    WorkloadRecord,
)

import tunefarm
from tunefarm.notebook import MOST_ROWS, Table, page, text
from tunefarm.outcome import Outcome
from tunefarm.tuning import Tuned

TARGET = "llvm -mcpu=znver5 -num-cores=2"
HOSTILE = "<script>alert('1')</script>"
KEY = TaskKey("f" * 64, TARGET)


class Checker(HTMLParser):
    """Notes what is left open, and what a page has in it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.styles: list[str] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += f"{data}\n"


def looked(value: Any) -> str:
    """The words that a notebook shows of a value, its HTML checked."""
    found = Checker()
    found.feed(value._repr_html_())
    assert found.open == []
    assert found.tags <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "pre"}
    colours = [style for style in found.styles if re.search(r"(?<!-)\b(color|background)", style)]
    assert not colours, "light and dark pages have their own"
    return found.said


def trial(number: int = 3, **changed: Any) -> Trial:
    config = {"sketch": "contraction", "mb": 8}
    times_s = (1e-3, 1.1e-3, 1.3e-3)
    return Trial(**{
        "job": "aaaa1111", "task": KEY, "number": number, "config": config, "times_s": times_s,
        "device": "llvm-1", "device_model": "Some CPU", "origin": "model", **changed,
    })  # fmt: skip


def job(**changed: Any) -> Job:
    tasks = (JobTask(WorkloadRecord(KEY.workload, "{}" * 500, "matmul 8x16·16x24", 6144), 3),)
    return Job("aaaa1111", TARGET, tasks, Budget(100, 60.0), **changed)


def test_a_task_shows_what_it_computes(model: str) -> None:
    module = tunefarm.from_onnx(model)
    (task,) = tunefarm.extract_tasks(module, TARGET)
    for value in (task, task.workload):
        said = looked(value)
        assert task.workload.summary in said
        assert "matmul(" in said
    assert "def main(" in str(task.workload.function)
    assert "output_names" not in str(task.workload.function)
    assert "matmul\n1\n" in looked(module)
    assert repr(module) == "IRModule(x: float32[8, 16] → y: float32[8, 24], 1 calls)"
    assert repr(task.target) == f"Target('{TARGET}')"


def test_a_module_shows_its_ports_and_sizes(model: str) -> None:
    lib = tunefarm.build(tunefarm.from_onnx(model))
    said = looked(lib)
    assert "input\nx\nfloat32[8, 16]\n" in said
    assert "output\ny\nfloat32[8, 24]\n" in said
    assert "weights\n" in said


def test_a_history_shows_what_builds_used(model: str) -> None:
    with tunefarm.apply_history_best((), starter=False) as history:
        assert repr(history) == "History(the given records: nothing was looked up)"
        tunefarm.build(tunefarm.from_onnx(model), TARGET)
    assert isinstance(history, History)
    assert "default\n" in looked(history)
    assert "1 default" in repr(history)


def test_a_job_shows_its_tasks_and_not_their_texts() -> None:
    said = looked(job(state=JobState.RUNNING, message="2 of 3 tasks have no time"))
    assert "100 trials, 60 s" in said
    assert "matmul 8x16·16x24\n3\n0.0\n" in said
    assert "2 of 3 tasks have no time" in said
    assert repr(job()) == f"Job('aaaa1111', queued, 1 tasks, 100 trials, '{TARGET}')"
    assert "{}" not in repr(job().tasks)


def test_a_trial_shows_its_config_and_what_came_of_it() -> None:
    said = looked(trial())
    assert "contraction mb=8" in said
    assert "1.10 ms of 3 repeats" in said
    assert "1.00 ms to 1.30 ms" in said
    failed = trial(times_s=(), error=ErrorKind.BUILD_ERROR, message="no\nroom")
    assert "build_error: no room" in looked(failed)
    assert repr(failed) == (
        "Trial('aaaa1111', 3, 'contraction mb=8', build_error: no room, 'model')"
    )


def test_a_record_shows_whether_a_final_promoted_it() -> None:
    key = BestKey(KEY.workload, KEY.target, "Some CPU")
    said = looked(Best(key, trial(), True, Verdict.BETTER, 1.5))
    assert "promoted by a final" in said
    assert "1.50x" in said
    assert "provisional" in looked(Best(key, trial(), False))


def test_what_tune_returns_shows_the_tasks() -> None:
    row = Progress(KEY, "matmul", 6144, 3, 10, 2, 0, 1e-3, 2e-3)
    last = JobUpdate(job(state=JobState.SUCCEEDED), (row,), {}, 1)
    said = looked(Tuned(last.job, last, 0, None, Outcome((row,), ("exact",), 1)))
    assert "matmul\n3\n12\n2\n2.00 ms\n1.00 ms\n2.00x\n" in said
    assert "12 trials + 1 final" in said
    assert "Nothing to do" in looked(Tuned(None, None, 12))


@pytest.mark.parametrize(
    "make",
    [
        lambda: job(message=HOSTILE, owner=HOSTILE, selector=HOSTILE),
        lambda: Job("a", HOSTILE, (JobTask(WorkloadRecord("k", "", HOSTILE)),), Budget()),
        lambda: trial(times_s=(), error=ErrorKind.RUN_ERROR, message=HOSTILE, device=HOSTILE),
        lambda: trial(config={"sketch": HOSTILE}, job=HOSTILE),
    ],
)
def test_texts_of_others_stay_texts(make: Callable[[], Any]) -> None:
    assert HOSTILE in looked(make())
    assert HOSTILE not in make()._repr_html_()


def test_a_long_table_says_how_much_is_left_out() -> None:
    table = Table(("n",), [(n,) for n in range(MOST_ROWS + 5)])
    assert "… and 5 more" in page("t", {}, table)
    assert "more" not in page("t", {}, Table(("n",), [(1,)]))
    assert text("a < b") == '<pre style="overflow-x:auto">a &lt; b</pre>'


def test_a_space_lists_its_sketches_and_knobs(model: str) -> None:
    (task,) = tunefarm.extract_tasks(tunefarm.from_onnx(model), TARGET)
    assert isinstance(task, Task)
    space = config_space(task.workload, Target(TARGET))
    printed = str(space)
    for sketch in space.sketches:
        assert sketch.sketch in printed
        assert all(re.search(rf"^  {knob.name} +", printed, re.M) for knob in sketch.knobs)
        assert all(c.name in printed for c in sketch.constraints)
    assert f"{space.size:,} configs" in printed
    assert len(repr(space)) < 200
    assert looked(space)

"""What a person sees while a job runs: one line a task at any width, plain lines in a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from tunefarm.db.records import (
    UNREGISTERED,
    Budget,
    Job,
    JobState,
    JobUpdate,
    Progress,
    TaskKey,
)

from tunefarm.outcome import Outcome
from tunefarm.progress import Following, View, showing, task_columns
from tunefarm.tables import Column, fit, print_sentence, table
from tunefarm.texts import duration, size
from tunefarm.tuning import Tuned
from tunefarm.updates import Idle, age_s

TARGET = "llvm -mcpu=emeraldrapids -num-cores=2"
LONG = "conv 3x3 s1 1x56x56x64→64 +add +relu"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def update(
    tasks: int = 3, trials: int = 4, state: JobState = JobState.RUNNING, failed: int = 0
) -> JobUpdate:
    progress = tuple(
        Progress(TaskKey(str(i), TARGET), f"{LONG} {i}", 10**8, 1, trials, failed, 0, 1e-3, 2e-3)
        for i in range(tasks)
    )
    job = Job("j", TARGET, (), Budget(100, 60.0), state=state)
    return JobUpdate(job, progress, {"wrong_answer": failed} if failed else {}, 0)


def screen(width: int, height: int, text: Callable[[Console], None]) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    text(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 50, 80, 120, 200])
def test_a_task_is_one_line_at_any_width(width: int) -> None:
    following = Following(peak=lambda job: 2e11)
    following.note(update(5, failed=1))
    lines = screen(width, 40, lambda console: console.print(View(following)))
    assert max(map(cell_len, lines)) <= width
    assert sum("conv" in text for text in lines) == 5
    assert ("of peak" in lines[1]) == (width >= 80)


def test_more_tasks_than_lines_are_counted_until_the_end() -> None:
    following = Following()
    following.note(update(30))
    live, final = View(following), View(following, whole=True)
    lines = screen(80, 24, lambda console: console.print(live))
    assert len(lines) < 24
    assert "… and 14 more tasks" in lines
    assert sum("conv" in text for text in screen(80, 24, lambda c: c.print(final))) == 30


@pytest.mark.parametrize("seen", [False, True])
def test_the_cursor_has_a_line_of_its_own_until_the_end(seen: bool) -> None:
    """Where a terminal shows ``^C``: behind a full line that would begin another."""
    following = Following()
    if seen:
        long = {f"error_{i}": i for i in range(20)}
        following.note(replace(update(2), errors=long))
    live = screen(80, 24, lambda console: console.print(View(following), end=""))
    assert live[-1] == ""
    assert max(map(len, live)) == 80 or not seen
    assert "" not in screen(80, 24, lambda c: c.print(View(following, whole=True), end=""))


def test_a_job_that_is_over_says_how_long_it_took() -> None:
    made = replace(update().job, created_at=1000.0, updated_at=1754.0)
    over = replace(made, state=JobState.SUCCEEDED)
    assert age_s(over, 9000.0) == 754.0
    assert age_s(made, 1010.0) == 10.0
    clock = Clock()
    following = Following(clock, before_s=age_s(over, 9000.0))
    following.note(replace(update(1, trials=100), job=over))
    assert following.headline() == "succeeded, 100/100 trials, 12:34"


def test_one_that_is_watched_from_its_middle_has_its_own_time_and_rate() -> None:
    clock = Clock()
    following = Following(clock, before_s=20.0)
    following.note(update(1, trials=50))
    clock.now = 10.0
    following.note(update(1, trials=60))
    assert following.headline() == "running, 60/100 trials, 1.0/s, 0:30, 0:40 left, then finals"


def test_the_share_of_peak_is_asked_for_once() -> None:
    asked: list[str] = []

    def peak(job: Job) -> float:
        asked.append(job.id)
        return 2e11

    following = Following(peak=peak)
    for trials in (0, 4, 8):
        following.note(update(trials=trials))
    assert asked == ["j"]
    assert "50%" in "\n".join(screen(120, 24, lambda console: console.print(View(following))))


def test_the_rate_counts_from_the_first_update_and_the_budget_bounds_the_time_left() -> None:
    clock = Clock()
    following = Following(clock)
    following.note(update(1, trials=50))
    clock.now = 10.0
    following.note(update(1, trials=60))
    assert following.headline() == "running, 60/100 trials, 1.0/s, 0:10, 0:40 left, then finals"
    clock.now = 30.0
    assert following.left_s == 30.0  # the budget's 60 s
    following.note(update(1, trials=103, state=JobState.SUCCEEDED))
    clock.now = 90.0
    assert following.headline() == "succeeded, 100/100 trials, 1.8/s, 0:30"


def test_a_search_that_its_time_ended_says_so() -> None:
    clock = Clock()
    following = Following(clock)
    following.note(update(1, trials=50))
    clock.now = 10.0
    ended = update(1, trials=60, state=JobState.SUCCEEDED)
    following.note(ended)
    assert following.headline() == "succeeded, 60/100 trials (the time was over), 1.0/s, 0:10"
    explained = replace(ended, job=replace(ended.job, message="40 of 100 trials were left over"))
    unlimited = replace(ended, job=replace(ended.job, budget=Budget(100)))
    for other in (explained, unlimited, update(1, trials=60, state=JobState.CANCELLED)):
        following.note(other)
        assert "60/100 trials, " in following.headline()


def test_a_column_that_wraps_comes_before_those_of_less_worth() -> None:
    """And two names that differ at their ends stay two."""
    names = [f"{LONG} +clip {end}" for end in ("one", "two")]
    columns = [
        Column("task", names, least=20, left=True, wraps=True),
        Column("status", ["confirmed"] * 2, rank=8, left=True),
        Column("why", ["no gain yet"] * 2, rank=5, left=True),
    ]
    for width, shown in ((80, ["task", "status", "why"]), (62, ["task", "status"])):
        lines = screen(width, 24, lambda c, width=width: c.print(table(columns, width)))
        assert lines[0].split() == shown
        assert [line[: len(names[0])] for line in lines[2:]] == names
    folded = screen(40, 24, lambda c: c.print(table(columns, 40)))
    assert max(map(cell_len, folded)) <= 40
    assert sum(line.rstrip().endswith("confirmed") for line in folded) == 2
    text = " ".join(" ".join(folded[2:]).replace("confirmed", "").split())
    assert text == " ".join(names)


def in_finals(look: int, *left: int, tasks: int = 3) -> JobUpdate:
    """An update in which the finals of these tasks are under way or wait."""
    now = update(tasks)
    rows = (replace(r, final_look=look * (i in left)) for i, r in enumerate(now.progress))
    return replace(now, progress=tuple(rows))


def test_finals_say_which_task_and_look_and_the_time_left() -> None:
    clock = Clock()
    following = Following(clock)
    following.note(in_finals(1, 0, 1, 2))
    assert following.headline() == "finals: task 1 of 3, look 1 of 3 at most, 0:00"
    assert following.notes() == [f"side by side with its default: {LONG} 0"]
    clock.now = 6.0
    following.note(in_finals(1, 2))
    assert following.headline() == (
        "finals: task 3 of 3, look 1 of 3 at most, 0:06, 0:03 left of this look"
    )
    clock.now = 8.0
    following.note(in_finals(1, 2))
    assert following.headline().endswith(", 0:01 left of this look")
    clock.now = 9.0
    following.note(in_finals(2, 1))
    assert following.headline() == "finals: task 1 of 1, look 2 of 3 at most, 0:09"
    assert following.notes()[0].endswith(f"{LONG} 1")
    following.note(update(3, state=JobState.SUCCEEDED))
    assert following.headline().startswith("succeeded, ")


def test_finals_that_are_held_again_count_anew() -> None:
    following = Following(Clock())
    following.note(in_finals(1, 2))
    following.note(in_finals(1, 0, 2))  # the first config of a task failed
    assert following.headline() == "finals: task 1 of 2, look 1 of 3 at most, 0:00"


def test_between_two_looks_the_job_says_that_finals_come() -> None:
    clock = Clock()
    following = Following(clock)
    following.note(update(1, trials=50))
    clock.now = 10.0
    following.note(update(1, trials=100))
    assert following.headline().endswith("0:10, finals begin")


@pytest.mark.parametrize("width", [20, 40])
def test_a_narrow_terminal_keeps_what_matters_in_the_finals(width: int) -> None:
    following = Following(Clock())
    following.note(in_finals(1, 0, 1))
    lines = screen(width, 24, lambda console: console.print(View(following)))
    assert max(map(cell_len, lines)) <= width
    assert lines[0].startswith("finals: task 1 of 2"[: width - 1])


def test_earlier_trials_count() -> None:
    following = Following(Clock())
    job = replace(update().job, options={"earlier": "80"})
    following.note(replace(update(1, trials=5), job=job))
    assert following.headline() == "running, 85/100 trials, 0:00, 1:00 left, then finals"


@pytest.mark.parametrize(
    ("changes", "pending", "words"),
    [
        ({"state": JobState.QUEUED}, 0, "waiting for a tuner; `tunefarm tuner` starts one"),
        ({}, 0, "waiting for a device of target"),
        ({"unmet": "arch is sm_80"}, 0, "waiting: arch is sm_80"),
        ({"compiler_version": "0.1"}, 0, "its tuner gets ready: device, earlier trials, spaces"),
        ({"compiler_version": "0.1"}, 1, "building and timing its first candidates"),
        (
            {"state": JobState.QUEUED, "options": {"owned": "1"}}, 0,
            "waiting for the tuner of this command, which starts or has another job",
        ),
        (
            {"options": {"owned": "1"}, "unmet": UNREGISTERED}, 0,
            "waiting for the worker of this command, which starts and checks its device",
        ),
        ({"options": {"owned": "1"}, "unmet": "it is ill"}, 0, "waiting: it is ill"),
        ({"state": JobState.CANCELLED, "unmet": "it is ill"}, 0, ""),
    ],
)  # fmt: skip
def test_a_job_without_a_trial_says_at_once_what_it_does(
    changes: dict[str, Any], pending: int, words: str
) -> None:
    following = Following(Clock())
    still = update(2, trials=0)
    rows = tuple(replace(row, pending=pending, best_s=None) for row in still.progress)
    following.note(replace(still, job=replace(still.job, **changes), progress=rows))
    assert len(following.notes()) == bool(words)
    assert all(note.startswith(words) for note in following.notes())


def test_a_job_that_was_put_back_says_that_it_waits_for_a_tuner() -> None:
    clock = Clock()
    following = Following(clock, idle=Idle(clock))
    following.note(update(trials=4, state=JobState.QUEUED))
    clock.now = 60.0
    assert following.notes()[-1] == "waiting for a tuner; `tunefarm tuner` starts one"


def test_a_job_that_comes_to_rest_says_so() -> None:
    clock = Clock()
    following = Following(clock, idle=Idle(clock))
    following.note(update(trials=4))
    clock.now = 60.0
    following.note(update(trials=4))
    assert following.notes()[-1] == "no trial has ended for 1:00"
    following.note(update(trials=5))
    assert "no trial" not in following.notes()[-1]


def test_rounds_that_take_long_here_are_no_silence() -> None:
    clock = Clock()
    following = Following(clock, idle=Idle(clock))
    for trials in (0, 4, 8):
        following.note(update(trials=trials))
        clock.now += 25.0
        assert not any("no trial" in note for note in following.notes())
    clock.now += 30.0
    assert following.notes()[-1] == "no trial has ended for 0:55"


def test_waiting_for_others_is_no_round() -> None:
    clock = Clock()
    following = Following(clock, idle=Idle(clock))
    following.note(update(trials=0))
    clock.now = 600.0
    following.note(replace(update(trials=0), cursor=1))  # a device was granted
    clock.now += 5.0
    following.note(replace(update(trials=4), cursor=2))
    clock.now += 11.0
    assert following.notes()[-1] == "no trial has ended for 0:11"


def test_a_job_moves_while_its_finals_run() -> None:
    clock = Clock()
    following = Following(clock, idle=Idle(clock))
    for cursor in (7, 8):
        following.note(replace(update(trials=4), cursor=cursor))
        assert following.idle.seconds == 0
        clock.now += 60.0
    assert following.notes()[-1] == "no trial has ended for 1:00"


def test_a_pipe_gets_a_line_now_and_then_and_one_for_each_state() -> None:
    def follow(console: Console) -> None:
        with showing(console) as watch:
            for state in (JobState.QUEUED,) + (JobState.RUNNING,) * 5 + (JobState.FAILED,):
                watch(replace(update(failed=2), job=replace(update().job, state=state)))

    lines = screen(40, 24, follow)
    assert [text.split(",")[0] for text in lines] == ["queued", "running", "failed"]
    assert lines[2].endswith(
        "fastest trials 3.00 ms, defaults 6.00 ms; finals tell luck from gain; "
        "failed: 2 wrong_answer"
    )


def concluded(following: Following) -> Outcome:
    """The outcome of a job whose winners gain nothing."""
    rows = tuple(replace(p, best_s=2e-3, default_s=2e-3) for p in following.rows)
    return Outcome(rows, ("exact",) * len(rows), 2)


def test_what_tune_returns_is_shown_in_a_line() -> None:
    last = update(2, trials=8, state=JobState.SUCCEEDED)
    following = Following(last=last)
    result = Tuned(last.job, last, 3, outcome=concluded(following))
    assert repr(result) == (
        "Tuned(16 trials + 2 finals; all tasks: 4.00 ms, 1.00x the defaults' 4.00 ms; "
        "earlier=3, job=j, succeeded)"
    )
    assert repr(Tuned(None, None, 12)) == "Tuned(nothing to do, earlier=12)"


def test_tune_says_what_others_took_of_the_machine_where_it_was_much() -> None:
    said = Tuned(None, None, 0, others_share=0.384).disturbance
    assert said.startswith("other processes took 38% of this machine meanwhile: ")
    assert Tuned(None, None, 0, others_share=0.05).disturbance == ""
    assert Tuned(None, None, 0).disturbance == ""


@pytest.mark.parametrize(("failed", "beside"), [(0, "weight"), (1, "failed")])
def test_who_watches_a_database_sees_what_who_tuned_saw(failed: int, beside: str) -> None:
    """The share of a peak, which only a farm knows, takes the room of nothing that both know."""
    heads = []
    for peak in (None, 2e11):
        following = Following(last=update(5, failed=failed), peak_flops=peak)
        following.outcome = concluded(following)
        columns = task_columns(following)
        heads.append([column.name for column, _ in fit(columns, 80)])
    rest = {"task", "trials", "latency", "gain", "GFLOP/s", "record"}
    assert set(heads[0]) == {beside, *rest}
    assert heads[1] == heads[0]


def test_a_pipe_gets_a_line_for_each_task_at_the_end() -> None:
    def follow(console: Console) -> None:
        with showing(console, lambda job: 1e12) as show:
            show(update(2, state=JobState.SUCCEEDED, failed=1))
            following = Following(last=update(2, failed=1))
            show.conclude(concluded(following))

    first, head, _, *tasks = screen(200, 24, follow)
    assert first.startswith("succeeded")
    assert head.split() == (
        ["task", "weight", "trials", "failed", "latency", "gain", "GFLOP/s", "of", "peak", "record"]
    )
    for number, text in enumerate(tasks):
        assert text.split("  ")[0].strip() == f"{LONG} {number}"
        assert text.split()[-9:] == ["1", "5", "1", "2.00", "ms", "1.00x", "50.0", "5%", "exact"]


def test_while_the_search_goes_on_the_fastest_trial_is_no_gain() -> None:
    view = View(Following())
    view(update(2))
    searching = screen(120, 24, lambda console: console.print(view))
    assert "fastest trial" in searching[1]
    assert "gain" not in searching[1]
    assert searching[-2] == "fastest trials 2.00 ms, defaults 4.00 ms; finals tell luck from gain"
    view.conclude(concluded(view.following))
    over = screen(120, 24, lambda console: console.print(view))
    assert "fastest" not in "".join(over)
    assert over[-2] == "all tasks: 4.00 ms, 1.00x the defaults' 4.00 ms"


def test_a_pipe_gets_what_was_seen_of_a_job_that_is_broken_off() -> None:
    def follow(console: Console) -> None:
        with suppress(KeyboardInterrupt), showing(console) as watch:
            watch(update(2, state=JobState.QUEUED))
            raise KeyboardInterrupt

    queued, stopped, head, _, *tasks = screen(200, 24, follow)
    assert queued.startswith("queued, 8/100 trials")
    assert stopped.startswith("stopped, 8/100 trials")
    assert "fastest trial" in head
    assert len(tasks) == 2


def test_a_pipe_gets_one_line_of_a_job_that_never_began() -> None:
    def follow(console: Console) -> None:
        with suppress(RuntimeError), showing(console) as watch:
            watch(update(2, trials=0, state=JobState.QUEUED))
            raise RuntimeError

    assert len(screen(200, 24, follow)) == 1


def test_columns_are_shortened_then_dropped_by_rank() -> None:
    columns = [
        Column("name", ["a" * 30], least=10, left=True),
        Column("first", ["11111111"], rank=1),
        Column("second", ["22222222"], rank=2),
        Column("nothing", ["–"], rank=8),
    ]

    def names(width: int) -> list[tuple[str, int]]:
        return [(column.name, space) for column, space in fit(columns, width)]

    assert names(100) == [("name", 30), ("first", 8), ("second", 8)]
    assert names(30) == [("name", 10), ("first", 8), ("second", 8)]
    assert names(29) == [("name", 19), ("second", 8)]
    assert names(5) == [("name", 5)]


def test_cells_are_taken_literally() -> None:
    lines = screen(40, 10, lambda c: c.print(table([Column("name", ["[bold] :smile: x"])], 40)))
    assert lines[-1].strip() == "[bold] :smile: x"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.77e-6, "4.77 µs"), (9.996e-4, "1.00 ms"), (0.0123, "12.3 ms"), (75, "75.0 s")],
)  # fmt: skip
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_sentence_breaks_between_words_on_a_terminal_alone(is_terminal: bool) -> None:
    sentence = "no candidate was faster by more than the noise, however fast its trial was"
    file = io.StringIO()
    print_sentence(Console(file=file, width=30, force_terminal=is_terminal), sentence)
    lines = file.getvalue().splitlines()
    assert (len(lines) > 1) is is_terminal
    assert " ".join(line.rstrip() for line in lines) == sentence


def test_sizes_have_three_digits_and_a_unit_that_fits() -> None:
    counts = (0, 1, 999, 1536, 999_400, 999_600, 25_557_032, 3_200_000_000, 2_000_000_000_000)
    assert [size(count) for count in counts] == [
        "0 bytes", "1 byte", "999 bytes", "1.54 kB", "999 kB", "1.00 MB", "25.6 MB", "3.20 GB",
        "2000 GB",
    ]  # fmt: skip

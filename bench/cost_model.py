"""How well do the cost models order the candidates of real tasks?

    python bench/cost_model.py DATABASE… [--models NAME,…] [--folds 4] [--fewest 24]

The databases' trials are the data: `tunefarm tune MODEL --search random --db DATABASE` makes trials
that no model chose. Two questions are asked of each model, and the answers are means over tasks:

    known     trained on the other folds of every task: rank correlation, and the fastest of its
              first quarter as a share of the task's fastest
    unseen    trained on all tasks but one: rank correlation, and the fastest of its first four and
              eight as shares of that task's fastest
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import FINAL, TaskKey, Trial
from tunefarm.db.store import Store
from tunefarm.tuner.cost_model import CostModel, Samples, make_model
from tunefarm.tuner.features import features
from tunefarm.tuner.warm_start import measured

from tunefarm.tables import Column, print_table

PAGE = 1000


def tasks_of(url: str, fewest: int) -> list[Samples]:
    """The measured configs of every task that has enough of them in today's space."""
    groups: dict[TaskKey, list[Trial]] = defaultdict(list)
    texts: dict[str, str] = {}
    with Store.open(url, readonly=True) as store:
        for job in store.jobs(limit=PAGE):
            texts.update((t.workload.key, t.workload.text) for t in job.tasks)
            for trial in _trials(store, job.id):
                if trial.ok and trial.origin != FINAL:
                    groups[trial.task].append(trial)
    found = []
    for task, trials in groups.items():
        target = Target(task.target)
        space = config_space(Workload.from_text(texts[task.workload]), target)
        rows, seconds = measured(space, trials)
        if len(rows) >= fewest:
            found.append(Samples(features(space, rows, target), seconds))
    return found


def _trials(store: Store, job: str) -> Iterator[Trial]:
    cursor = 0
    while page := store.trials_of(job, cursor, PAGE):
        yield from page.trials
        if len(page.trials) < PAGE:
            return
        cursor = page.cursor


@dataclass(frozen=True, slots=True)
class Answers:
    """Means over tasks: rank correlation, and the fastest of the first few over the fastest."""

    correlation: float
    fastest: tuple[float, ...]


def known(name: str, tasks: Sequence[Samples], folds: int) -> Answers:
    found = []
    for fold in range(folds):
        tests = [_fold(task, folds, fold) for task in tasks]
        model = make_model(name, seed=0)
        model.fit([_rows(task, ~test) for task, test in zip(tasks, tests, strict=True)])
        held = [_rows(task, test) for task, test in zip(tasks, tests, strict=True)]
        found += [_judge(model, task, (max(1, len(task) // 4),)) for task in held]
    return _mean(found)


def unseen(name: str, tasks: Sequence[Samples]) -> Answers:
    found = []
    for held in tasks:
        model = make_model(name, seed=0)
        model.fit([task for task in tasks if task is not held])
        found.append(_judge(model, held, (4, 8)))
    return _mean(found)


def _fold(task: Samples, folds: int, fold: int) -> NDArray[np.bool_]:
    return np.random.default_rng(0).permutation(len(task)) % folds == fold


def _rows(task: Samples, rows: NDArray[np.bool_]) -> Samples:
    return Samples(task.features[rows], task.seconds[rows])


def _judge(model: CostModel, task: Samples, counts: Sequence[int]) -> Answers:
    order = np.argsort(-model.scores(task.features), kind="stable")
    places = np.empty(len(order))
    places[order] = np.arange(len(order))
    true = np.argsort(np.argsort(task.seconds))
    correlation = float(np.corrcoef(places, true)[0, 1])
    fastest = task.seconds.min()
    return Answers(correlation, tuple(fastest / task.seconds[order[:n]].min() for n in counts))


def _mean(answers: Sequence[Answers]) -> Answers:
    correlation = float(np.mean([a.correlation for a in answers]))
    return Answers(correlation, tuple(np.mean([a.fastest for a in answers], axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("databases", nargs="+", metavar="DATABASE")
    parser.add_argument("--models", default="xgboost,xgboost-regression,xgboost-rank,ridge,draft")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--fewest", type=int, default=24)
    options = parser.parse_args()
    tasks = [t for url in options.databases for t in tasks_of(url, options.fewest)]
    print(f"{sum(map(len, tasks))} configs of {len(tasks)} tasks")
    names = options.models.split(",")
    seen = [known(name, tasks, options.folds) for name in names]
    new = [unseen(name, tasks) for name in names]
    print_table(
        Console(),
        [
            Column("model", names, left=True),
            Column("known", [f"{a.correlation:.2f}" for a in seen]),
            Column("best of 1/4", [f"{a.fastest[0]:.3f}" for a in seen]),
            Column("unseen", [f"{a.correlation:.2f}" for a in new]),
            Column("best of 4", [f"{a.fastest[0]:.3f}" for a in new]),
            Column("best of 8", [f"{a.fastest[1]:.3f}" for a in new]),
        ],
    )


if __name__ == "__main__":
    main()

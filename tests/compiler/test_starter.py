"""The records that ship with the package fit the sketches of the same package."""

from __future__ import annotations

from importlib.resources import files

import pytest
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db import jsonl

STARTER = files("tunefarm.db") / jsonl.STARTER


@pytest.mark.skipif(not STARTER.is_file(), reason="no records ship with this package")
def test_shipped_records_fit_todays_spaces() -> None:
    with STARTER.open(encoding="utf-8") as stream:
        found = jsonl.collect(stream, jsonl.STARTER)
    assert not found.problems
    assert found.promoted
    stale = []
    for best in found.promoted:
        record = found.workloads[best.key.workload]
        workload, target = Workload.from_text(record.text), Target(best.key.target)
        space = config_space(workload, target)
        fits = best.trial.space_fingerprint == space.fingerprint
        if not fits or not space.valid(space.encode(best.trial.config)[None])[0]:
            stale.append(f"{record.summary} for {target}")
    assert not stale, (
        f"{len(stale)} of {len(found.promoted)} shipped records are stale ({stale[0]}): tune them "
        "again and run `tunefarm records export db/starter.jsonl --starter`"
    )

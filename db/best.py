"""The best record of each key: look-up of many keys in one query, promotion in one swap."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update
from tunefarm.db import trials
from tunefarm.db.dialect import upsert
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.lookup import Compatible, best_key_of, rank, same_code, settles
from tunefarm.db.models import BEST, FINALS, TARGETS, TRIALS, WORKLOADS
from tunefarm.db.records import Best, BestKey, Final, Found, Promotion, Trial, TrialKey, Verdict
from tunefarm.db.rows import TRIAL_COLUMNS, TRIAL_SOURCE, chunks, trial_from_row
from tunefarm.db.standing import last_trial, replaced

_OWN = (
    BEST.c.promoted.label("best_promoted"),
    BEST.c.verdict.label("best_verdict"),
    BEST.c.default_s.label("best_default_s"),
    BEST.c.median_s.label("best_median_s"),
    BEST.c.speedup_over_default.label("best_speedup"),
    BEST.c.model.label("best_model"),
    BEST.c.model_speedup.label("best_model_speedup"),
)


def lookup_query(workloads: list[str]) -> Select[Any]:
    """Every best record of these workloads: a range of ``best`` for each, and its trials."""
    source = (
        WORKLOADS.join(BEST, BEST.c.workload_id == WORKLOADS.c.id)
        .join(TRIALS, TRIALS.c.id == BEST.c.trial_id)
        .join(TARGETS, TARGETS.c.id == BEST.c.target_id)
    )
    return select(*TRIAL_COLUMNS, *_OWN).select_from(source).where(WORKLOADS.c.key.in_(workloads))


def lookup(
    connection: Connection,
    keys: Iterable[BestKey],
    compatible: Compatible = same_code,
    job: str = "",
) -> dict[BestKey, tuple[Found, ...]]:
    """What is known for each key, closest first; empty where nothing is. Of a ``job``: with the
    promoted records that stood after its last trial in place of those that later jobs won."""
    wanted = list(keys)
    stored: dict[str, list[Best]] = {key.workload: [] for key in wanted}
    for chunk in chunks(sorted(stored)):
        rows = connection.execute(lookup_query(chunk)).all()
        for best in _as_after(connection, rows, job) if job else map(_from_row, rows):
            stored[best.key.workload].append(best)
    return {key: rank(key, stored[key.workload], compatible) for key in wanted}


def _as_after(connection: Connection, rows: Sequence[Any], job: str) -> list[Best]:
    """The records of these rows, each promoted one as it stood after the job's last trial."""
    since = last_trial(connection, job) or 0
    finals = replaced(connection, {r.id for r in rows if r.best_promoted and r.id > since}, since)
    stood = {
        record: next((one for one in chain if one.trial_id <= since), None)
        for record, chain in finals.items()
    }
    ids = [final.trial_id for final in stood.values() if final is not None]
    query = select(*TRIAL_COLUMNS).select_from(TRIAL_SOURCE).where(TRIALS.c.id.in_(ids))
    trials_of = {row.id: trial_from_row(row) for row in connection.execute(query)}
    found = []
    for row in rows:
        final = stood.get(row.id)
        if row.id not in stood:
            found.append(_from_row(row))
        elif final is not None:
            found.append(_promoted_by(final, trials_of[final.trial_id]))
    return found


def _promoted_by(final: Any, trial: Trial) -> Best:
    """The record that a final made of a trial."""
    return Best(
        key=best_key_of(trial),
        trial=trial,
        promoted=True,
        verdict=Verdict(final.verdict),
        speedup_over_default=final.speedup_over_default,
        model=final.model or "",
        model_speedup=final.speedup if final.model else None,
        final_s=final.latency_s,
    )


def everything(connection: Connection, *, promoted_only: bool = False) -> list[Best]:
    """Every best record, in key order."""
    source = TRIAL_SOURCE.join(BEST, BEST.c.trial_id == TRIALS.c.id)
    query = select(*TRIAL_COLUMNS, *_OWN).select_from(source).order_by(*BEST.primary_key)
    if promoted_only:
        query = query.where(BEST.c.promoted)
    return [_from_row(row) for row in connection.execute(query)]


def _from_row(row: Any) -> Best:
    trial = trial_from_row(row)
    speedup = row.best_speedup
    is_anew = row.best_promoted and row.best_median_s != trial.median_s
    if speedup is None and row.best_default_s is not None:
        speedup = row.best_default_s / row.best_median_s
    return Best(
        key=best_key_of(trial),
        trial=trial,
        promoted=bool(row.best_promoted),
        verdict=Verdict(row.best_verdict) if row.best_verdict else None,
        speedup_over_default=speedup,
        model=row.best_model or "",
        model_speedup=row.best_model_speedup,
        final_s=row.best_median_s if is_anew else None,
    )


# --- promotion ----------------------------------------------------------------------------------


def promote(connection: Connection, request_id: str, final: Final) -> Promotion:
    """Store the verdict and, if it settles the key, swap the challenger in for the incumbent.

    The swap happens only if the incumbent still stands in the key, whichever compiler version made
    it. Records of another space fingerprint stand beside those of the challenger's: such an
    incumbent counts as none. An incumbent that stands after a final in a whole model is marked
    with the outcome.
    The same ``request_id`` again changes nothing.
    UnknownRecord if a trial of the final is not stored or the challenger failed.
    """
    challenger = _row(connection, final.challenger)
    incumbent = _row(connection, final.incumbent) if final.incumbent else None
    done = connection.execute(
        select(FINALS.c.promoted).where(FINALS.c.request_id == request_id)
    ).scalar_one_or_none()
    if done is None:
        done = settles(final.verdict, final.challenger.number, incumbent is not None) and _swap(
            connection, challenger, incumbent, final
        )
        if final.model and incumbent is not None and not done:
            _mark(connection, incumbent, final)
        connection.execute(
            insert(FINALS).values(
                request_id=request_id,
                challenger_id=challenger.id,
                incumbent_id=incumbent.id if incumbent else None,
                verdict=str(final.verdict),
                speedup=final.speedup,
                speedup_over_default=final.speedup_over_default,
                promoted=done,
                created_at=time.time(),
                model=final.model or None,
                latency_s=final.latency_s,
            )
        )
    return Promotion(bool(done), _standing(connection, challenger))


def restore(connection: Connection, best: Best) -> bool:
    """Put an imported promoted record into its key unless another promoted one stands there."""
    final = Final(
        best.key,
        best.trial.key,
        None,
        best.verdict or Verdict.BETTER,
        speedup=best.model_speedup,
        speedup_over_default=best.speedup_over_default,
        model=best.model,
        latency_s=best.final_s,
    )
    return _swap(connection, _row(connection, best.trial.key), None, final)


def _row(connection: Connection, key: TrialKey) -> Any:
    id_ = trials.stored_keys(connection, [key]).get(key)
    row = None
    if id_ is not None:
        row = connection.execute(select(TRIALS).where(TRIALS.c.id == id_)).one()
    if row is None or row.median_s is None:
        state = "not stored" if row is None else "a failed one"
        raise UnknownRecord(
            f"trial {key.number} of task {key.task.workload[:12]} in job {key.job} is {state}"
        )
    return row


def _swap(connection: Connection, challenger: Any, incumbent: Any, final: Final) -> bool:
    """A compare-and-swap on (key, incumbent); whether it took place."""
    values = {
        "trial_id": challenger.id,
        "median_s": final.latency_s or challenger.median_s,
        "promoted": True,
        "verdict": str(final.verdict),
        "speedup_over_default": final.speedup_over_default,
        "model": final.model or None,
        "model_speedup": final.speedup if final.model else None,
    }
    key = {column.name: getattr(challenger, column.name) for column in BEST.primary_key}
    connection.execute(
        upsert(connection, BEST).on_conflict_do_nothing(),
        {
            **key,
            **values,
            "median_s": challenger.median_s,
            "promoted": False,
            "default_s": None,
            "verdict": None,
        },
    )
    if incumbent is None or incumbent.space_fingerprint != challenger.space_fingerprint:
        leaves = not _is_taken(connection, challenger)
    else:
        leaves = _demote(connection, incumbent)
    if leaves:
        connection.execute(update(BEST).where(*_in_slot(challenger)).values(values))
    return leaves


def _is_taken(connection: Connection, challenger: Any) -> bool:
    """Whether a promoted record of any compiler version stands in the trial's key and space."""
    stands = select(BEST.c.trial_id).where(*_in_slot(challenger, "compiler_version"))
    return connection.execute(stands.where(BEST.c.promoted)).first() is not None


def _demote(connection: Connection, incumbent: Any) -> bool:
    """Take the incumbent's promotion back; False if it does not stand any more."""
    stands = (BEST.c.promoted, BEST.c.trial_id == incumbent.id)
    statement = update(BEST).where(*_in_slot(incumbent), *stands)
    values = {
        "median_s": incumbent.median_s,
        "promoted": False,
        "verdict": None,
        "model": None,
        "model_speedup": None,
    }
    return connection.execute(statement.values(values)).rowcount == 1


def _mark(connection: Connection, incumbent: Any, final: Final) -> None:
    """Note how a record that stands fared in whole runs of a model, if it still does."""
    stands = (BEST.c.promoted, BEST.c.trial_id == incumbent.id)
    speedup = 1 / final.speedup if final.speedup else None
    values = {"model": final.model, "model_speedup": speedup}
    connection.execute(update(BEST).where(*_in_slot(incumbent), *stands).values(values))


def _in_slot(trial: Any, besides: str = "") -> list[Any]:
    """The conditions under which a best record is that of the trial's slot, one column let be."""
    columns = [column for column in BEST.primary_key if column.name != besides]
    return [column == getattr(trial, column.name) for column in columns]


def _standing(connection: Connection, challenger: Any) -> Best | None:
    source = TRIAL_SOURCE.join(BEST, BEST.c.trial_id == TRIALS.c.id)
    query = select(*TRIAL_COLUMNS, *_OWN).select_from(source).where(*_in_slot(challenger))
    row = connection.execute(query).one_or_none()
    return _from_row(row) if row is not None else None

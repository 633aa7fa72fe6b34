"""Candidates on their way: from clients into the queue, to workers, back as stored trials."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection
from tunefarm.db import cordons, health, leases, queue, tokens, trials
from tunefarm.db.errors import StaleIncarnation, StaleLease
from tunefarm.db.leases import Enlisted
from tunefarm.db.records import (
    Collected,
    Cordon,
    Device,
    Held,
    Refusal,
    TrialKey,
    TrialRequest,
    Work,
    WorkerOrders,
    WorkerState,
)
from tunefarm.proto.logs import ids, ids_of_trial, ids_of_work
from tunefarm.tracker import signals
from tunefarm.tracker.callers import OWN, Caller
from tunefarm.tracker.farm import Farm, Seen
from tunefarm.tracker.signals import Bell

from tunefarm.texts import counted

_log = logging.getLogger(__name__)
MAX_KNOWN = 20_000
"""Workers and devices that a farm may have."""
MARGIN = 16
"""Queued candidates that are looked at beyond what a worker may hold."""
LOOK_S = 15.0
"""After how long a worker's queue is looked at again, though there was no news of it: between
several trackers news may be lost, one hears all of them."""

# --- clients ------------------------------------------------------------------------------------


async def submit(
    farm: Farm, lease: str, epoch: int, requests: Sequence[TrialRequest]
) -> tuple[TrialKey, ...]:
    """Queue candidates under a lease; returns the keys that are stored already."""
    done = await farm.database.write(lambda c: queue.submit(c, lease, epoch, requests))
    live = farm.leases.get(lease)
    with suppress(StaleLease):  # it has just ended: its candidates wait for the job's next
        if live is not None:
            device = live.lease.device
        else:  # another tracker granted it a moment ago
            device = await farm.database.read(lambda c: str(leases.check(c, lease, epoch).device))
        farm.signals.notify(signals.device(device))
    extra = ids(job=requests[0].job if requests else "", lease=lease, epoch=epoch)
    _log.debug("%d candidates queued, %d known", len(requests) - len(done), len(done), extra=extra)
    return done


async def collect(farm: Farm, job: str, cursor: int, limit: int, wait_s: float) -> Collected:
    """Trials of the job after the cursor; waits for the first."""

    def read(connection: Connection) -> Collected:
        found = trials.of_job(connection, job, cursor, limit)
        pending = queue.pending_count(connection, job)
        return Collected(found.trials, found.cursor, pending)

    deadline = farm.clock() + wait_s
    with farm.signals.listen(signals.job(job)) as bell:
        while True:
            bell.silence()
            found = await farm.database.read(read)
            left_s = deadline - farm.clock()
            if found.trials or left_s <= 0 or farm.closing:
                return found
            await bell.rings(left_s)


# --- workers ------------------------------------------------------------------------------------


async def sync(farm: Farm, state: WorkerState, wait_s: float, caller: Caller = OWN) -> WorkerOrders:
    """Take in a worker's state and results; say what it should do once there is something new.

    StaleIncarnation if a newer process of the worker is known, ValueError if another live worker
    serves one of its devices, Forbidden or NotYours if the worker or a device is not the caller's.
    """
    caller.check_offer(state.worker, state.devices)
    await _enlist(farm, state, caller.name)
    seen = farm.workers[state.worker]
    if seen.incarnation != state.incarnation:
        raise StaleIncarnation(state.worker)
    if state.number <= seen.number:
        return _orders(farm)
    seen.number, seen.at = state.number, farm.clock()
    if seen.capacity != state.capacity:
        seen.capacity = state.capacity
        farm.signals.notify(signals.LEASES)
    if seen.poll is not None:
        seen.poll.ring()
    accepted, refused = await _store(farm, state)
    if state.capacity == 0:
        await _take_back(farm, state)
    topics = [signals.device(device.id) for device in state.devices]
    if state.held:
        topics += [signals.end(device.id) for device in state.devices]
    with farm.signals.listen(*topics) as bell:
        seen.poll = bell
        return await _poll(farm, state, bell, accepted, refused, wait_s)


async def _poll(
    farm: Farm,
    state: WorkerState,
    bell: Bell,
    accepted: tuple[TrialKey, ...],
    refused: tuple[Refusal, ...],
    wait_s: float,
) -> WorkerOrders:
    deadline = farm.clock() + min(wait_s, farm.options.lease_term_s / 3)
    while True:
        bell.silence()
        if _is_outdated(farm, state):
            return _orders(farm, accepted=accepted, refused=refused)
        work, cancel = await _decide(farm, state)
        left_s = deadline - farm.clock()
        checks = _checks(farm, state)
        is_told = checks == farm.workers[state.worker].checks
        if work or cancel or accepted or refused or not is_told or left_s <= 0 or farm.closing:
            farm.workers[state.worker].checks = checks
            return _orders(farm, work, cancel, accepted, refused, checks)
        await bell.rings(left_s)


def _is_outdated(farm: Farm, state: WorkerState) -> bool:
    seen = farm.workers[state.worker]
    return (seen.incarnation, seen.number) != (state.incarnation, state.number)


def _orders(
    farm: Farm,
    work: Sequence[Work] = (),
    cancel: Sequence[Held] = (),
    accepted: tuple[TrialKey, ...] = (),
    refused: tuple[Refusal, ...] = (),
    checks: Mapping[str, int] | None = None,
) -> WorkerOrders:
    term_s = farm.options.lease_term_s
    return WorkerOrders(tuple(work), tuple(cancel), accepted, refused, term_s, checks or {})


def _checks(farm: Farm, state: WorkerState) -> dict[str, int]:
    """The checks of the worker's devices that were asked for and are not done."""
    asked = {device.id: farm.devices[device.id].check for device in state.devices}
    return {d.id: asked[d.id] for d in state.devices if asked[d.id] > d.health.check}


async def _enlist(farm: Farm, state: WorkerState, owner: str) -> None:
    """Note the worker's process and devices if they are new; heartbeats do not get further.

    Of what the rows say already nothing is written: after a restart all workers come at once.
    """
    seen = farm.workers.get(state.worker)
    if (
        seen is not None
        and seen.incarnation == state.incarnation
        and seen.owner == owner
        and seen.devices == state.devices
        and all(farm.devices[d.id].worker == state.worker for d in state.devices)
    ):
        return
    _check_devices(farm, state)
    for device in state.devices:
        _check_owner(farm, state.worker, device)
    if not _is_registered(farm, state, owner):
        await _register(farm, state, owner)
    present = farm.workers.get(state.worker)
    if present is None or present.incarnation != state.incarnation:
        if present is not None and present.poll is not None:
            present.poll.ring()
        present = Seen(state.incarnation, state.number - 1, state.devices, farm.clock())
        if all(device.id in farm.idle_at_load for device in state.devices):
            present.empty_since = (0,) * len(state.devices)  # as long as there was no news at all
        farm.workers[state.worker] = present
        offered = counted(len(state.devices), "device")
        _log.info("offers %s", offered, extra=ids(worker=state.worker))
    present.devices = state.devices
    present.owner = owner
    farm.signals.notify(signals.LEASES, signals.JOBS)


def _is_registered(farm: Farm, state: WorkerState, owner: str) -> bool:
    """Whether the rows say of a worker and of its devices, all of them well, what it says."""
    row = farm.enlisted.get(state.worker)
    if row is None or (owner and row.owner != owner):
        return False
    if (row.incarnation, row.compiler_version) != (state.incarnation, state.compiler_version):
        return False
    for told in state.devices:
        stored = farm.devices.get(told.id)
        if stored is None or told.health.trouble:
            return False
        before = leases.what_is_told(stored, stored.worker)
        if before != leases.what_is_told(told, state.worker):
            return False
    return True


async def _register(farm: Farm, state: WorkerState, owner: str) -> None:
    """Store the worker's process and devices, and what follows from them; ValueError if another
    worker has got one of these since this tracker last heard of it."""

    known = {d.id: farm.devices[d.id].worker for d in state.devices if d.id in farm.devices}

    def write(
        connection: Connection,
    ) -> tuple[tuple[Device, ...], tuple[str, ...], tuple[Cordon, ...]]:
        process = state.incarnation, state.compiler_version, state.capacity
        leases.enlist(connection, state.worker, *process)
        if owner:
            tokens.own_worker(connection, state.worker, owner)
        for device, worker in leases.register(
            connection, state.worker, state.devices, known
        ).items():
            raise _served(farm, device, worker)
        ended = leases.end_mixed(connection, state.worker)
        ended += health.take_in(connection, state.devices)
        devices = leases.devices(connection, state.worker)
        return devices, ended, cordons.cordons(connection)

    devices, ended, kept = await farm.database.write(write)
    farm.devices |= {device.id: device for device in devices}
    farm.enlisted[state.worker] = Enlisted(state.incarnation, state.compiler_version, owner)
    farm.hold_cordons(kept)
    for lease in ended:
        farm.drop_lease(lease)


def _check_devices(farm: Farm, state: WorkerState) -> None:
    """ValueError unless each device has a name of its own, and there is room for it: a tracker
    knows every worker and device by heart."""
    names = {device.id for device in state.devices}
    if "" in names or len(names) < len(state.devices):
        raise ValueError(f"worker {state.worker} offers a device without a name, or one twice")
    new = sum(device.id not in farm.devices for device in state.devices)
    workers = len(farm.workers) + (state.worker not in farm.workers)
    if max(workers, len(farm.devices) + new) > MAX_KNOWN:
        raise ValueError(
            f"the farm knows {len(farm.workers)} workers and {len(farm.devices)} devices; "
            f"{MAX_KNOWN} of each are allowed"
        )


def _check_owner(farm: Farm, worker: str, device: Device) -> None:
    known = farm.devices.get(device.id)
    if known is not None and known.worker != worker and farm.is_online(device.id):
        raise _served(farm, device.id, known.worker)


def _served(farm: Farm, device: str, worker: str) -> ValueError:
    return ValueError(
        f"device {device} is served by worker {worker}; stop that one, or wait "
        f"{farm.options.lease_term_s:.0f} s after it has died"
    )


async def _store(
    farm: Farm, state: WorkerState
) -> tuple[tuple[TrialKey, ...], tuple[Refusal, ...]]:
    if not state.results:
        return (), ()

    def write(
        connection: Connection,
    ) -> tuple[tuple[TrialKey, ...], tuple[Refusal, ...], tuple[str, ...]]:
        leases.enlist(connection, state.worker, state.incarnation, state.compiler_version)
        accepted, refused = queue.store(connection, state.worker, state.results)
        return accepted, refused, health.note_results(connection, state.results)

    accepted, refused, ended = await farm.database.write(write)
    if ended:
        for lease in ended:
            farm.drop_lease(lease)
        farm.hold_cordons(await farm.database.write(cordons.cordons))
    farm.counts.stale["lease"] += len(refused)
    _tell_results(state, refused)
    farm.signals.notify(*{signals.job(key.job) for key in accepted})
    return accepted, refused


def _tell_results(state: WorkerState, refused: tuple[Refusal, ...]) -> None:
    """Log what came of a worker's results; one line a trial for those who want them all."""
    reasons = {refusal.key: refusal.reason for refusal in refused}
    for result in state.results:
        why = reasons.get(result.trial.key)
        if why is None and not _log.isEnabledFor(logging.DEBUG):
            continue
        extra = ids_of_trial(result.trial, result.lease, result.epoch)
        extra["ids"]["worker"] = state.worker
        if why is not None:
            _log.info("result refused: %s", why, extra=extra)
        else:
            _log.debug("result stored: %s", result.trial.error or "ok", extra=extra)


async def _take_back(farm: Farm, state: WorkerState) -> None:
    """What a worker that takes no more work does not hold goes to the next process unblamed."""
    keys = {held.key for held in state.held}
    await farm.database.write(lambda c: queue.take_back(c, state.incarnation, keys))


async def _decide(farm: Farm, state: WorkerState) -> tuple[list[Work], list[Held]]:
    """What the worker should get, and what it should drop.

    A worker that holds nothing and whose queue was empty costs no look while there is no news.
    """
    news = farm.signals.heard(signals.device(device.id) for device in state.devices)
    seen, now = farm.workers[state.worker], farm.clock()
    is_fresh = now - seen.looked_at < LOOK_S or not farm.database.is_shared
    if not state.held and seen.empty_since == news and is_fresh:
        return [], []
    answered = {(r.lease, r.epoch, r.trial.key) for r in state.results}
    held = frozenset(h for h in state.held if (h.lease, h.epoch, h.key) not in answered)
    limit = len(held) + state.capacity + MARGIN

    def look(connection: Connection, device: Device) -> tuple[list[queue.Queued], set[Held]]:
        line = queue.wanted(connection, device.id, state.incarnation, limit)
        chosen = queue.choose(line, held, state.incarnation, state.capacity)
        return chosen, {queued.held for queued in line}

    def read(connection: Connection) -> tuple[bool, set[Held]]:
        looks = [look(connection, device) for device in state.devices]
        return any(chosen for chosen, _ in looks), set().union(*(wanted for _, wanted in looks))

    def write(connection: Connection) -> tuple[list[Work], set[str]]:
        leases.enlist(connection, state.worker, state.incarnation, state.compiler_version)
        work: list[Work] = []
        quarantined: set[str] = set()
        for device in state.devices:
            chosen, _ = look(connection, device)
            given = queue.deliver(connection, chosen, state.incarnation)
            work += given
            if len(given) < len(chosen):
                quarantined |= {queued.key.job for queued in chosen}
        return work, quarantined

    found, wanted = await farm.database.read(read)
    seen.looked_at = now - random.uniform(0, LOOK_S / 2)  # not all workers' at the same time
    seen.empty_since = None if wanted else news
    cancel = sorted(held - wanted, key=lambda h: (h.lease, h.key.job, h.key.number))
    if not found:
        return [], cancel
    work, quarantined = await farm.database.write(write)
    for given in work if _log.isEnabledFor(logging.DEBUG) else ():
        _log.debug("given to worker %s", state.worker, extra=ids_of_work(given))
    farm.signals.notify(*(signals.job(job) for job in quarantined))
    if quarantined:
        farm.signals.notify(*(signals.device(device.id) for device in state.devices))
    return work, cancel

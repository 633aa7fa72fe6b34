"""Old trials left out once a day, a few at a time: whoever writes waits for one batch at most."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from tunefarm.db.errors import StoreError
from tunefarm.db.retention import Policy, batches, leave_out, prunable
from tunefarm.tracker.farm import Farm

_log = logging.getLogger(__name__)
EVERY_S = 86_400.0
PAUSE_S = 0.1
"""Between two batches."""


async def keep_pruning(farm: Farm, policy: Policy) -> None:
    """Leave out what the policy says, now and every day, until cancelled."""
    while True:
        try:
            await prune(farm, policy)
        except StoreError as error:
            _log.warning("old trials were not deleted: %s", error)
        await asyncio.sleep(EVERY_S)


async def prune(farm: Farm, policy: Policy) -> int:
    """Leave out what the policy says; how many trials that were."""
    ids = await farm.database.read(lambda c: prunable(c, policy, time.time()))
    done = 0
    for batch in batches(ids):
        done += await farm.database.write(partial(leave_out, ids=batch))
        await asyncio.sleep(PAUSE_S)
    if ids:
        _log.info("deleted %d old trials", done)
    return done

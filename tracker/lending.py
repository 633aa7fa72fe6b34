"""What clients ask about leases: the three calls as they are on the wire, however they come."""

from __future__ import annotations

from tunefarm.proto import convert, farm_pb2
from tunefarm.proto.errors import Overloaded
from tunefarm.tracker.callers import caller
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.limits import wait_of
from tunefarm.tracker.owners import check_job, check_lease

MAX_WAITED_S = 86400.0
MAX_TICKETS = 20_000


async def acquire(desk: Desk, request: farm_pb2.AcquireRequest) -> farm_pb2.AcquireReply:
    """A lease, or the place in the queue of a request that got none in time."""
    if not request.request_id or not request.request.target:
        raise ValueError("a device is acquired with a request id and a target")
    if request.request_id not in desk.tickets and len(desk.tickets) >= MAX_TICKETS:
        raise Overloaded(f"{MAX_TICKETS} requests wait for devices already; ask again later")
    wanted = caller().narrowed_request(convert.device_request_from_wire(request.request))
    if request.job:
        await check_job(desk.farm, request.job)
    lease = await desk.acquire(
        request.request_id,
        wanted,
        client=caller().signed(request.client),
        owner=caller().name,
        job=request.job,
        claim_epoch=request.claim_epoch,
        wait_s=wait_of(request.wait_s),
        waited_s=min(request.waited_s, MAX_WAITED_S),
    )
    if lease is not None:
        return farm_pb2.AcquireReply(lease=convert.lease_to_wire(lease))
    return farm_pb2.AcquireReply(
        position=desk.place(request.request_id), matching=desk.matching(wanted)
    )


async def renew(desk: Desk, request: farm_pb2.RenewRequest) -> farm_pb2.RenewReply:
    """The lease with a fresh deadline."""
    await check_lease(desk.farm, request.lease)
    lease = await desk.renew(request.lease, request.epoch)
    return farm_pb2.RenewReply(lease=convert.lease_to_wire(lease))


async def release(desk: Desk, request: farm_pb2.ReleaseRequest) -> farm_pb2.ReleaseReply:
    """The end of the lease; that of one which has ended already is no error."""
    await check_lease(desk.farm, request.lease)
    await desk.release(request.lease, request.epoch)
    return farm_pb2.ReleaseReply()

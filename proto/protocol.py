"""Which releases of workers, clients and trackers work together.

``PROTOCOL`` rises with every minor release that changes what is said on the wire. A process says
its own in Sync and Info; one that says none is of a release before there were any, which counts as
0. Neighbours work together: fields and methods are only ever added, and what one of them lacks has
the meaning that it had before. Wider apart, both sides refuse.
"""

from __future__ import annotations

from tunefarm.proto.errors import ProtocolMismatch

PROTOCOL = 1


def check_protocol(caller: int, tracker: int, name: str) -> None:
    """ProtocolMismatch unless the two work together; ``name`` is what the caller is."""
    if abs(caller - tracker) <= 1:
        return
    older = name if caller < tracker else "tracker"
    raise ProtocolMismatch(
        f"this {name} speaks protocol {caller}, the tracker protocol {tracker}, and only "
        f"neighbours understand each other; upgrade the {older}"
    )

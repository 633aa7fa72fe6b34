"""Records that builds use, found and decided."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.convert.keys import (
    best_key_from_wire,
    best_key_to_wire,
    trial_key_from_wire,
    trial_key_to_wire,
)
from tunefarm.proto.convert.trials import trial_from_wire, trial_to_wire
from tunefarm.proto.convert.values import (
    match_from_wire,
    match_to_wire,
    verdict_from_wire,
    verdict_to_wire,
)


def best_to_wire(best: rec.Best) -> pb.Best:
    return pb.Best(
        key=best_key_to_wire(best.key),
        trial=trial_to_wire(best.trial),
        promoted=best.promoted,
        verdict=verdict_to_wire(best.verdict),
        speedup_over_default=best.speedup_over_default,
        model=best.model,
        model_speedup=best.model_speedup,
        final_s=best.final_s,
    )


def best_from_wire(wire: pb.Best) -> rec.Best:
    has_speedup = wire.HasField("speedup_over_default")
    return rec.Best(
        key=best_key_from_wire(wire.key),
        trial=trial_from_wire(wire.trial),
        promoted=wire.promoted,
        verdict=verdict_from_wire(wire.verdict),
        speedup_over_default=wire.speedup_over_default if has_speedup else None,
        model=wire.model,
        model_speedup=wire.model_speedup if wire.HasField("model_speedup") else None,
        final_s=wire.final_s if wire.HasField("final_s") else None,
    )


def found_to_wire(found: rec.Found) -> pb.Found:
    return pb.Found(best=best_to_wire(found.best), match=match_to_wire(found.match))


def found_from_wire(wire: pb.Found) -> rec.Found:
    return rec.Found(best_from_wire(wire.best), match_from_wire(wire.match))


def final_to_wire(final: rec.Final) -> pb.Final:
    return pb.Final(
        key=best_key_to_wire(final.key),
        challenger=trial_key_to_wire(final.challenger),
        incumbent=trial_key_to_wire(final.incumbent) if final.incumbent else None,
        verdict=verdict_to_wire(final.verdict),
        speedup=final.speedup,
        speedup_over_default=final.speedup_over_default,
        model=final.model,
        latency_s=final.latency_s,
    )


def final_from_wire(wire: pb.Final) -> rec.Final:
    verdict = verdict_from_wire(wire.verdict)
    if verdict is None:
        raise ValueError("the final names no verdict")
    has_default = wire.HasField("speedup_over_default")
    return rec.Final(
        key=best_key_from_wire(wire.key),
        challenger=trial_key_from_wire(wire.challenger),
        incumbent=trial_key_from_wire(wire.incumbent) if wire.HasField("incumbent") else None,
        verdict=verdict,
        speedup=wire.speedup if wire.HasField("speedup") else None,
        speedup_over_default=wire.speedup_over_default if has_default else None,
        model=wire.model,
        latency_s=wire.latency_s if wire.HasField("latency_s") else None,
    )

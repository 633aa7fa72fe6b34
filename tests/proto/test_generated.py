"""The committed protobuf code is what the .proto files say."""

from __future__ import annotations

from pathlib import Path

from tunefarm.proto import farm_pb2, generate


def test_the_generated_code_is_fresh() -> None:
    assert generate.stale() == [], "run python -m tunefarm.proto.generate"


def test_staleness_is_seen(tmp_path: Path) -> None:
    for path in generate.FOLDER.glob("*_pb2*.py*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "farm_pb2.py").write_text("# edited\n")
    (tmp_path / "records_pb2.pyi").unlink()
    (tmp_path / "zebra_pb2.py").write_text("")
    assert generate.stale(tmp_path) == ["farm_pb2.py", "records_pb2.pyi", "zebra_pb2.py"]


def test_every_mutation_has_an_identity() -> None:
    """A repeated call must be seen as one: by request id, epoch, or the record's own key."""
    identities = {"request_id", "epoch", "claim_epoch", "number", "job"}
    reads = {"Info", "Collect", "Pending", "GetJob", "ListJobs", "Watch", "Best", "History"}
    reads |= {"Misses"}
    by_content = {"NoteModel"}  # a model is known by its tasks and its target
    reads |= {"TaskStats", "CountTrials", "Devices", "LeaseHistory", "Audit", "ListTokens"}
    streams = {"Leases"}  # of methods that are looked at themselves
    for service in farm_pb2.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            fields = {field.name for field in method.input_type.fields}
            without = reads | by_content | streams
            assert method.name in without or fields & identities, method.name

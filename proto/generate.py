"""Generate the protobuf and gRPC code, or check that what is committed is fresh.

python -m tunefarm.proto.generate [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
VIRTUAL = "tunefarm/proto"
"""Where the .proto files stand for their importers, so that the code imports absolutely."""


def generate(out: Path) -> list[Path]:
    """Write the code of every .proto file under ``out``; returns the files, sorted by name.

    Raises RuntimeError when protoc refuses a file (its reasons are on standard error).
    """
    from grpc_tools import protoc
    from grpc_tools.protoc import _get_resource_file_name

    sources = sorted(path.name for path in FOLDER.glob("*.proto"))
    well_known = _get_resource_file_name("grpc_tools", "_proto")
    status = protoc.main([
        "protoc",
        f"-I{VIRTUAL}={FOLDER}",
        f"-I{well_known}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        *(f"{VIRTUAL}/{name}" for name in sources),
    ])  # fmt: skip
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")
    services = {path.stem for path in FOLDER.glob("*.proto") if "\nservice " in path.read_text()}
    made = sorted((out / VIRTUAL).iterdir())
    return [p for p in made if not p.stem.endswith("_grpc") or p.stem[:-9] in services]


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of the files in ``folder`` that differ from what the .proto files give now."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = {path.name: path.read_bytes() for path in generate(Path(scratch))}
    kept = {path.name: path.read_bytes() for path in folder.glob("*_pb2*.py*")}
    return sorted(n for n in fresh.keys() | kept.keys() if fresh.get(n) != kept.get(n))


def main(arguments: list[str]) -> int:
    """Write the code into this folder; with ``--check`` only compare, status 1 if stale."""
    if arguments == ["--check"]:
        names = stale()
        if names:
            print(f"stale: {', '.join(names)}; run python -m tunefarm.proto.generate")
        return 1 if names else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        for path in generate(Path(scratch)):
            (FOLDER / path.name).write_bytes(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

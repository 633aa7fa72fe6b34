"""The installed wheel holds every package and data file, and the command line starts from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tunefarm

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("compiler", "dashboard", "db", "proto", "tracker", "tuner", "worker", "tunefarm")
CODE = ("*.py", "*.ll", "*.proto", "*.pyi", "*.jsonl", "py.typed")
DATA = (*CODE, "*.html", "*.css", "*.js", "*.svg", "*.txt")


def main() -> None:
    installed = Path(tunefarm.__file__).resolve().parent
    if installed == ROOT / "tunefarm":
        sys.exit("tests/check_wheel.py must run against an installed wheel (see .ci/run)")
    missing = []
    for folder in FOLDERS:
        for pattern in DATA:
            for path in (ROOT / folder).rglob(pattern):
                inside = path.relative_to(ROOT / folder)
                place = installed / inside if folder == "tunefarm" else installed / folder / inside
                if not place.exists():
                    missing.append(str(path.relative_to(ROOT)))
    if missing:
        sys.exit(f"the wheel lacks {', '.join(missing)}")
    subprocess.run([sys.executable, "-m", "tunefarm", "--help"], check=True, capture_output=True)
    print("the wheel is complete")


if __name__ == "__main__":
    main()

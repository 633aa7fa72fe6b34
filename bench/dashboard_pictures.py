"""The pictures of the dashboard in ``docs/``, of a real tuning job.

python bench/dashboard_pictures.py [--db FILE] [--seconds 75] [--out docs]

Without --db it tunes ShuffleNet on this machine for that long first. Chromium opens the pages in
the sizes and colours below. Look at every picture before you keep it.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import onnx
from PIL import Image
from playwright.sync_api import sync_playwright


@dataclass(frozen=True)
class Picture:
    """A page by its path."""

    name: str
    path: str
    width: int = 1280
    height: int = 1120
    scheme: str = "light"


def pictures(client: httpx.Client) -> list[Picture]:
    """What is shown of the newest job, its heaviest task that got faster, and its model."""
    job = client.get("/api/v1/jobs?limit=1").json()["rows"][0]
    results = client.get(f"/api/v1/jobs/{job['id']}/outcome").json()["results"]
    gained = [row["task"] for row in results if row["best_s"] < 0.99 * row["default_s"]]
    task = (gained or [row["task"] for row in results])[0]
    shown = f"/tasks/{task['workload'][:16]}/{task['target_id']}"
    page, model = f"/jobs/{job['id']}", f"/models/{job['model']}/{job['target_id']}"
    return [
        Picture("job", page),
        Picture("overview", "/", height=900, scheme="dark"),
        Picture("model", model),
        Picture("task", shown),
        Picture("phone", page, width=390, height=844, scheme="dark"),
        Picture("phone-task", shown, width=390, height=844),
    ]


@contextmanager
def served(database: str) -> Iterator[str]:
    """A dashboard over the database: its address."""
    command = [sys.executable, "-m", "tunefarm", "dashboard", "--db", database, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2].rstrip("/")
    finally:
        server.terminate()
        server.wait(20)


def take(browser: Any, address: str, picture: Picture, folder: Path) -> None:
    """Write the picture once its charts are drawn."""
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme
    )
    page.goto(address + picture.path, wait_until="load")
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas, .empty").first.wait_for()
    page.get_by_text("Asking the compiler").wait_for(state="detached")
    page.wait_for_timeout(500)
    path = folder / f"dashboard-{picture.name}.png"
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        path, optimize=True
    )
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    page.close()


def tune(folder: Path, seconds: float) -> str:
    """A database of ShuffleNet's tuning on this machine."""
    light = Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx"
    model = folder / "shufflenet.onnx"
    shutil.copy(light, model)
    database = str(folder / "tunefarm.db")
    command = [sys.executable, "-m", "tunefarm", "tune", str(model), "--db", database]
    subprocess.run([*command, "--minutes", str(seconds / 60), "--trials", "1056"], check=True)
    return database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        database = options.db or tune(Path(folder), options.seconds)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        with served(database) as address, httpx.Client(base_url=address, timeout=60) as client:
            for picture in pictures(client):
                take(browser, address, picture, options.out)
        browser.close()


if __name__ == "__main__":
    main()

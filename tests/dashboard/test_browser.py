"""The pages in a real browser: no errors, nothing wider than the screen, accessible, live."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from onnx import TensorProto, helper
from tunefarm.db.store import Store

from tests.ports import own_port

PAGES = (
    "/", "/jobs", "/jobs/aaaa1111", "/jobs/aaaa1111?task=0", "/jobs/curves?job=bbbb&job=aaaa",
    "/trials", "/trials/1", "/trials/8", "/trials/121", "/diff?a=1&b=2", "/tasks", "/devices",
    "/devices/llvm-1", "/failures", "/api", "/login", "/nowhere", "/models", "MODEL",
)  # fmt: skip
MAIN_PAGES = ("/", "/jobs", "/jobs/aaaa1111", "/devices", "MODEL")
SIZES = {"desktop": (1280, 900, "light"), "phone": (390, 844, "dark")}
_AXE = "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => \
v.id + ': ' + v.nodes.map(n => n.target.join(' ')).slice(0, 3).join(', ')))"
_WAIT_MS = 60_000
_HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
GROWN = re.compile(r"/best-so-far\?after=\d+")


@pytest.fixture(scope="module")
def address(module_farm: Any) -> Iterator[str]:
    with serving(module_farm.database) as address:
        yield address


@contextmanager
def serving(database: str, port: str = "0") -> Iterator[str]:
    """The address of a dashboard process over a database."""
    command = [sys.executable, "-m", "tunefarm", "dashboard", "--db", database, "--port", port]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[2].rstrip("/")
    finally:
        server.terminate()
        server.wait(60)


def opened(browser: Any, size: str) -> tuple[Any, list[str]]:
    """A page of this size, and the list that its errors go to."""
    width, height, scheme = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=False
    )
    page = context.new_page()
    page.set_default_timeout(_WAIT_MS)
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page, errors


def model_page(address: str) -> str:
    """The path of the only model's page."""
    (model,) = httpx.get(f"{address}/api/v1/models").json()["rows"]
    return f"/models/{model['digest']}/{model['target_id']}"


def test_a_model_tells_what_is_left_to_tune(browser: Any, address: str) -> None:
    page, errors = opened(browser, "desktop")
    page.goto(address + "/models")
    page.get_by_role("link", name="tiny net").click()
    page.get_by_text("0 tasks untuned, 2 stale").wait_for()
    page.locator("[data-chart=roofline] canvas").wait_for()
    assert errors == []


@pytest.mark.parametrize("size", SIZES)
def test_every_page_works_on_every_size(browser: Any, address: str, axe: str, size: str) -> None:
    page, errors = opened(browser, size)
    problems = []
    for path in PAGES:
        page.goto(address + (model_page(address) if path == "MODEL" else path), wait_until="load")
        for chart in page.locator("[data-chart]").all():
            chart.locator("canvas, .empty").first.wait_for()
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        if page.evaluate(wider) > 0:
            problems.append(f"{path}: wider than the screen")
        if size == "desktop" or path in MAIN_PAGES:
            page.evaluate(axe)
            problems += [f"{path}: {found}" for found in page.evaluate(_AXE)]
    expected = "Failed to load resource: the server responded with a status of 404 (Not Found)"
    assert [error for error in errors if error != expected] == []
    assert not problems, "\n".join(problems)


def test_a_search_shows_what_matches_and_can_be_shared(browser: Any, address: str) -> None:
    page, errors = opened(browser, "desktop")
    page.goto(address + "/jobs")
    page.locator("#found tbody tr").nth(1).wait_for()
    page.get_by_placeholder("Id, target").fill("nobody")
    page.locator("#found tbody tr").nth(1).wait_for(state="detached")
    page.wait_for_url("**/jobs?q=nobody")
    page.reload()
    assert page.locator("#found tbody tr").count() == 1
    assert errors == []


def test_an_open_page_follows_the_job(browser: Any, address: str, module_farm: Any) -> None:
    page, errors = opened(browser, "desktop")
    page.goto(address + "/jobs/aaaa1111")
    page.locator("#best canvas").wait_for()
    page.get_by_text("120 / 200").wait_for()
    with page.expect_response(GROWN) as more:  # the chart asks for what came since alone
        with Store.open(module_farm.database) as store:
            store.add_trials([module_farm.trial(1, number) for number in range(60, 80)])
        page.get_by_text("140 / 200").wait_for()
    assert 0 < len(more.value.json()["columns"]["id"]) <= 20
    newest = "section[aria-labelledby=latest] tbody tr:first-child td:nth-child(3)"
    # asked for each time, as the page puts new rows in the old ones' place
    page.wait_for_function("path => document.querySelector(path)?.textContent === '79'", arg=newest)
    assert errors == []


def test_a_page_that_nobody_sees_asks_for_nothing(
    browser: Any, address: str, module_farm: Any
) -> None:
    page, errors = opened(browser, "desktop")
    page.goto(address + "/jobs/aaaa1111")
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas, .empty").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(_HIDE, True)
    with Store.open(module_farm.database) as store:
        store.add_trials([module_farm.trial(0, number) for number in range(100, 107)])
    page.wait_for_timeout(3000)
    assert asked == []
    page.evaluate(_HIDE, False)
    page.get_by_text(re.compile(r"1[2-4]7 / 200")).wait_for()
    assert errors == []


def test_pages_follow_a_tune_from_its_start_to_its_end(browser: Any, tmp_path: Path) -> None:
    database, model = str(tmp_path / "farm.db"), str(tmp_path / "model.onnx")
    Store.open(database).close()
    save_product(model)
    page, errors = opened(browser, "phone")
    tune = [sys.executable, "-m", "tunefarm", "tune", model, "-q", "--db", database]
    with serving(database) as address:
        page.goto(address + "/")
        tuning = subprocess.Popen([*tune, "--trials", "24", "--no-closing"])
        page.locator("a[href^='/jobs/']").first.click()
        page.get_by_text(re.compile(r"^\s*\d+ / 24")).wait_for()
        page.locator("#best canvas").wait_for()
        page.get_by_text("24 / 24").wait_for()
        page.get_by_text("succeeded").first.wait_for()
        assert tuning.wait(60) == 0
    assert errors == []


def save_product(path: str) -> None:
    """A model of one task, a product of 64x64 matrices."""
    a, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (64, 64)) for n in "ac")
    b = helper.make_tensor("b", TensorProto.FLOAT, (64, 64), [0.5] * 64 * 64)
    graph = helper.make_graph([helper.make_node("MatMul", "ab", "c")], "product", [a], [c], [b])
    onnx.save(helper.make_model(graph), path)


def test_a_page_says_that_the_dashboard_is_away(browser: Any, module_farm: Any) -> None:
    page, _ = opened(browser, "desktop")
    port = str(own_port())
    with serving(module_farm.database, port) as address, page.expect_response("**/live/**"):
        page.goto(address + "/jobs/aaaa1111")
    page.get_by_text("The dashboard does not answer").wait_for()
    with serving(module_farm.database, port):
        page.get_by_text("The dashboard does not answer").wait_for(state="detached")


def test_themes_are_switched_and_kept(browser: Any, address: str) -> None:
    page, errors = opened(browser, "desktop")
    page.goto(address + "/jobs/aaaa1111")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    assert errors == []


def test_code_is_shown_where_it_is_asked_for(browser: Any, address: str) -> None:
    page, errors = opened(browser, "phone")
    page.goto(address + "/trials/1")
    page.get_by_role("link", name="Scheduled program").click()
    page.locator("#made pre").wait_for()
    assert "for " in page.locator("#made pre").inner_text()
    assert errors == []

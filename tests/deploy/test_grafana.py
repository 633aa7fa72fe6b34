"""Grafana's provisioning: files as it takes them, metrics that exist, queries that run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from sqlalchemy import text
from tunefarm.db.store import Store

from tests.deploy.test_deploy import metric_names

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
PROVISIONING = GRAFANA / "provisioning"
COLUMNS = 24
OTHER_METRICS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
"""What ``ProcessCollector`` tells, beside the farm's own."""

_TEXT = {"type": "string", "minLength": 1}
_SOURCE = {
    "type": "object",
    "properties": {"type": {"enum": ["prometheus", "postgres"]}, "uid": _TEXT},
    "required": ["type", "uid"],
    "additionalProperties": False,
}
_NUMBER = {"type": "integer", "minimum": 0}
_PLACE = {
    "type": "object",
    "properties": dict.fromkeys("xywh", _NUMBER),
    "required": list("xywh"),
    "additionalProperties": False,
}
_PROMETHEUS = {
    "properties": {"datasource": _SOURCE, "expr": _TEXT, "refId": {"pattern": "^[A-Z]$"}},
    "required": ["datasource", "expr", "refId"],
}
_POSTGRES = {
    "properties": {
        "datasource": _SOURCE,
        "rawSql": _TEXT,
        "rawQuery": {"const": True},
        "format": {"enum": ["table", "time_series"]},
        "refId": {"pattern": "^[A-Z]$"},
    },
    "required": ["datasource", "rawSql", "rawQuery", "format", "refId"],
}
_PANEL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["stat", "timeseries", "table", "barchart"]},
        "title": _TEXT,
        "datasource": _SOURCE,
        "gridPos": _PLACE,
        "targets": {
            "type": "array", "minItems": 1, "items": {"oneOf": [_PROMETHEUS, _POSTGRES]}
        },
        "fieldConfig": {"type": "object", "required": ["defaults", "overrides"]},
        "options": {"type": "object"},
    },
    "required": ["id", "type", "title", "datasource", "gridPos", "targets", "fieldConfig"],
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {
        "uid": {"type": "string", "pattern": "^[a-z0-9-]{1,40}$"},
        "title": _TEXT,
        "schemaVersion": {"type": "integer", "minimum": 36},
        "tags": {"type": "array", "items": _TEXT},
        "refresh": _TEXT,
        "time": {"type": "object", "required": ["from", "to"]},
        "templating": {"type": "object", "required": ["list"]},
        "panels": {"type": "array", "minItems": 1, "items": _PANEL},
    },
    "required": ["uid", "title", "schemaVersion", "time", "templating", "panels"],
    "not": {"required": ["id"]},  # that of one Grafana: a provisioned dashboard has none
}
"""The part of Grafana's schema of dashboards that these use."""


def boards() -> Iterator[dict[str, Any]]:
    for path in DASHBOARDS:
        yield json.loads(path.read_text())


def targets(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(panel, query) of all panels on a kind of data source."""
    return [
        (f"{board['title']}: {panel['title']}", target)
        for board in boards()
        for panel in board["panels"]
        for target in panel["targets"]
        if target["datasource"]["type"] == kind
    ]


def sources() -> dict[str, str]:
    """Types of the data sources that are provisioned, by their uids."""
    text_ = (PROVISIONING / "datasources" / "tunefarm.yaml").read_text()
    return {one["uid"]: one["type"] for one in yaml.safe_load(text_)["datasources"]}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_as_grafana_takes_them(path: Path) -> None:
    board = json.loads(path.read_text())
    jsonschema.validate(board, SCHEMA)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]
        assert all(t["datasource"] == panel["datasource"] for t in panel["targets"])
    for one, other in combinations(panels, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    is_beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    return not is_beside and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def test_dashboards_have_names_of_their_own() -> None:
    assert len({board["uid"] for board in boards()}) == len(DASHBOARDS) == 2


def test_they_use_data_sources_and_variables_that_there_are() -> None:
    known = sources()
    for board in boards():
        variables = {one["name"]: one for one in board["templating"]["list"]}
        for user in (*variables.values(), *board["panels"]):
            assert known[user["datasource"]["uid"]] == user["datasource"]["type"]
        used = set(re.findall(r"\$(?!__)(\w+)", json.dumps(board["panels"])))
        assert used == set(variables), board["title"]


def test_the_provider_reads_the_dashboards() -> None:
    text_ = (PROVISIONING / "dashboards" / "tunefarm.yaml").read_text()
    (provider,) = yaml.safe_load(text_)["providers"]
    assert provider["type"] == "file"
    page = (GRAFANA.parents[1] / "docs" / "operations.md").read_text()
    assert f"deploy/grafana/dashboards:{provider['options']['path']}" in page


def test_no_secret_is_in_the_files() -> None:
    text_ = (PROVISIONING / "datasources" / "tunefarm.yaml").read_text()
    for source in yaml.safe_load(text_)["datasources"]:
        for value in source.get("secureJsonData", {}).values():
            assert re.fullmatch(r"\$\{\w+\}", value)


@pytest.mark.parametrize(("where", "target"), targets("prometheus"))
def test_queries_are_about_metrics_that_exist(where: str, target: dict[str, Any]) -> None:
    query = target["expr"]
    used = set(re.findall(r"\b(?:tunefarm|process)_\w+", query))
    assert used, where
    assert used <= metric_names() | OTHER_METRICS, where
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing), where
    counters = set(re.findall(r"\b\w+_(?:total|bucket)\b", query))
    assert all(re.search(rf"(rate|increase)\({name}\b", query) for name in counters), where


def filled_in(query: str) -> str:
    """A query as Grafana sends it: its macros and variables replaced."""
    hour = "now() - interval '1 hour'"
    query = re.sub(
        r"\$__timeFilter\((\w+\([\w.]+\)|[\w.]+)\)", rf"\1 BETWEEN {hour} AND now()", query
    )
    bucket = r"floor(extract(epoch FROM \1) / 300) * 300"
    query = re.sub(r"\$__timeGroup\((\w+\([\w.]+\)), \$__interval\)", bucket, query)
    query = query.replace("$target", "'llvm', 'sim'")
    assert "$" not in query, query
    return query


def test_every_query_runs_on_postgresql(postgres: Any) -> None:
    queries = [(where, target["rawSql"]) for where, target in targets("postgres")]
    for board in boards():
        for variable in board["templating"]["list"]:
            if variable["datasource"]["type"] == "postgres":
                queries.append((variable["name"], variable["query"]))
    assert len(queries) > 10
    with postgres.database("latest") as url, Store.open(url, readonly=True) as store:
        for where, query in queries:
            with store.reading() as connection:
                found = connection.execute(text(filled_in(query)))
                assert found.keys(), where


def test_time_series_have_a_time() -> None:
    for where, target in targets("postgres"):
        if target["format"] == "time_series":
            assert re.search(r"\bAS time\b", target["rawSql"]), where
            assert re.search(r"ORDER BY (1|at)$", target["rawSql"]), where

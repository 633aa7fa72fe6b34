"""The files under deploy/: each passes its own tool or schema, and starts commands that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tunefarm.db.records import JobState
from tunefarm.tracker.counts import Counts, Seconds
from tunefarm.tracker.metrics import Reading, families

from tunefarm.cli.app import run

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = DEPLOY / "docker" / "compose.yaml"
SBATCH = DEPLOY / "slurm" / "worker.sbatch"
KUBERNETES = "1.31"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def units() -> Iterator[tuple[str, list[str]]]:
    """(unit, what it starts) with the service's own environment filled in."""
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
        yield unit.name, [word for word in shlex.split(line) if not word.startswith("$")]


def commands() -> list[tuple[str, list[str]]]:
    """(where, words of a tunefarm command) of every file."""
    found = [(name, words[1:]) for name, words in units()]
    for manifest in MANIFESTS:
        for document in documents(manifest):
            template = document.get("spec", {}).get("template", {}).get("spec", {})
            found += [(c["name"], c["args"]) for c in template.get("containers", ())]
    services = documents(COMPOSE)[0]["services"]
    found += [(f"compose {n}", s["command"]) for n, s in services.items() if n != "setup"]
    script = services["setup"]["command"][0].replace("\\\n", " ")
    found += [(line, shlex.split(line)[1:]) for line in lines_with("tunefarm ", script)]
    sbatch = SBATCH.read_text().replace("\\\n", " ")
    (call,) = lines_with("tunefarm worker", sbatch)
    found.append(("slurm", shlex.split(call[call.index("tunefarm ") :])[1:]))
    texts = [path.read_text() for path in (COMPOSE, *UNITS)]
    comments = " ".join(line[1:].strip().rstrip("\\") for t in texts for line in t.splitlines()
                        if line.startswith("#"))  # fmt: skip
    for told in re.findall(r"tunefarm ((?:token create|certificates)(?: [\w./:-]+)*)", comments):
        found.append((told, told.split()))
    return found


def lines_with(sign: str, script: str) -> list[str]:
    return [line.strip() for line in script.splitlines() if line.strip().startswith(sign)] or [
        line for line in script.splitlines() if sign in line and not line.startswith("#")
    ]


@pytest.mark.parametrize(("where", "words"), commands())
def test_every_command_and_option_exists(
    where: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    depth = 2 if words[0] in ("token", "db") else 1
    assert run([*words[:depth], "--help"]) == 0, where
    told = capsys.readouterr().out
    options = [word.partition("=")[0] for word in words[depth:] if word.startswith("--")]
    for option in options:
        assert re.search(rf"^ +{option} ", told, re.M), f"{where}: {option}"


def test_all_three_roles_are_deployed_everywhere() -> None:
    roles = {words[0] for where, words in commands() if not where.startswith(("slurm", "tunefarm"))}
    assert roles >= {"tracker", "worker", "tuner"}


# --- systemd ------------------------------------------------------------------------------------


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; apt-get install systemd")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """The units, starting a program that is there."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/tunefarm/bin/tunefarm", shutil.which("true") or "")
        (tmp_path / unit.name).write_text(text)
    return [str(tmp_path / unit.name) for unit in UNITS]


def test_systemd_takes_the_units(installed: list[str]) -> None:
    done = analyze("verify", "--man=no", *installed)
    mine = [line for line in done.stderr.splitlines() if "tunefarm" in line]
    assert mine == []


def test_the_units_are_hardened(installed: list[str]) -> None:
    for unit, most in zip(installed, (25, 30, 50), strict=True):
        done = analyze("security", "--offline=true", f"--threshold={most}", "--no-pager", unit)
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
        assert done.returncode == 0, last


# --- containers ---------------------------------------------------------------------------------


def test_compose_meets_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(COMPOSE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_names_volumes_and_services_that_it_has() -> None:
    (farm,) = documents(COMPOSE)
    for name, service in farm["services"].items():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source.startswith("/") or source in farm["volumes"], name
        assert set(service.get("depends_on", ())) <= set(farm["services"])
        assert service["image"] == "tunefarm"


def test_the_dockerfile_copies_what_is_there_and_is_no_root() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT"}
    assert {line.split()[0] for line in lines} <= known
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    sources = {name for names in copied for name in names if not name.startswith(("/", "--"))}
    root = DEPLOY.parent
    assert all((root / name).exists() for name in sources)
    packages = {path.parent.name for path in root.glob("*/__init__.py")} - {"tests", "bench"}
    assert packages <= sources, "the wheel is made of these"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] not in ("root", "0")
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["tunefarm"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_takes_the_manifests(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_manifests_refer_to_what_they_have() -> None:
    found = [document for path in MANIFESTS for document in documents(path)]
    named = {(d["kind"], d["metadata"]["name"]): d for d in found}
    for kind, name in (
        ("Deployment", "tunefarm-tracker"),
        ("Deployment", "tunefarm-tuner"),
        ("DaemonSet", "tunefarm-worker"),
    ):
        pod = named[kind, name]["spec"]["template"]
        assert named[kind, name]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            if "secret" in volume:
                secret = named["Secret", volume["secret"]["secretName"]]["stringData"]
                assert {item["key"] for item in volume["secret"].get("items", ())} <= set(secret)
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                assert reference["key"] in named["Secret", reference["name"]]["stringData"]
        ports = {port["name"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
                assert container[probe]["httpGet"]["path"] in ("/healthz", "/readyz")


# --- Slurm --------------------------------------------------------------------------------------


def test_the_batch_script_starts_workers(tmp_path: Path) -> None:
    """Run by bash, with an ``srun`` that says what it was asked for."""
    assert subprocess.run(["bash", "-n", str(SBATCH)]).returncode == 0
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    refused = subprocess.run(["bash", str(SBATCH)], env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "TUNEFARM_TRACKER: is not set" in refused.stderr
    environment |= {"TUNEFARM_TRACKER": "/home/me/w.json", "TUNEFARM_WORKER_OPTIONS": "--tag a=b"}
    done = subprocess.run(["bash", str(SBATCH)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[words.index("tunefarm") :] == [
        "tunefarm", "worker", "--tracker", "/home/me/w.json", "--log-format", "json",
        "--tag", "slurm-job=42", "--tag", "slurm-partition=none", "--tag", "a=b",
    ]  # fmt: skip


def test_slurm_takes_the_options_of_the_script() -> None:
    """Against ``sbatch`` where it is installed; else against the names in its manual."""
    lines = SBATCH.read_text().splitlines()
    given = [line.split()[1] for line in lines if line.startswith("#SBATCH ")]
    first_command = next(i for i, line in enumerate(lines) if line and line[0] not in "#")
    assert all(line.startswith("#") or not line for line in lines[:first_command])
    known = {
        "--job-name", "--nodes", "--ntasks-per-node", "--exclusive", "--time", "--requeue",
        "--open-mode", "--output", "--signal",
    }  # fmt: skip
    assert {option.partition("=")[0] for option in given} == known
    if shutil.which("sbatch") is not None:
        told = subprocess.run(["sbatch", "--help"], capture_output=True, text=True).stdout
        assert all(re.search(rf"{option}\b", told) for option in known)


# --- Prometheus ---------------------------------------------------------------------------------


def metric_names() -> set[str]:
    """The names of all samples that a tracker tells."""
    counts = Counts()
    counts.calls["Sync"].add(0.1)
    reading = Reading({}, 0, 0, 0, {0: 1}, {JobState.QUEUED: 1}, {0: 1}, 0, {}, {"server": 0.0},
                      Seconds(), 0, counts, 0.0)  # fmt: skip
    names: set[str] = set()
    for family in families(reading):
        names |= {sample.name for sample in family.samples}
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


def test_alerts_are_rules_about_metrics_that_exist() -> None:
    rules = DEPLOY / "prometheus" / "alerts.yml"
    if shutil.which("promtool") is not None:
        done = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True)
        assert done.returncode == 0, done.stderr
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        used = set(re.findall(r"\btunefarm_\w+", rule["expr"]))
        assert used <= metric_names(), rule["alert"]
        assert used or "up{" in rule["expr"], rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_prometheus_reads_the_rules() -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert settings["rule_files"] == ["alerts.yml"]
    assert settings["scrape_configs"][0]["job_name"] == "tunefarm"


def test_the_page_of_metrics_lists_them_all() -> None:
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"`(tunefarm_\w+)", page))
    families_of = {re.sub(r"_(bucket|count|sum)$", "", name) for name in metric_names()}
    assert {name for name in families_of if name.startswith("tunefarm_")} == told

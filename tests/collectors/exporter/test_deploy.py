"""What ships in deploy/: by the real parsers and types where they can be had, and the prolog by running it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from collectors.exporter import names
from collectors.exporter.gpu_series import XID
from llmtop.model.signals import SERIES
from tests.support.processes import REPOSITORY, wait_for
from tests.support.prometheus import NO_PROMETHEUS, Prometheus, find

DEPLOY = REPOSITORY / "deploy"
RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
DASHBOARD = DEPLOY / "grafana-dashboard.json"
LEVELS = "(?:pid|rank|run|gpu|node|link|cluster)"
DCGM_ONLY = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_FAILURE")
"""Which a dcgm-exporter may give and llmtop does not: its alert `gpu_error` says the same."""
SCHEMAS = REPOSITORY / ".cache" / "schemas"
needs_schemas = pytest.mark.skipif(not SCHEMAS.exists(), reason="no types: run tests/fetch_schemas.sh")


def loaded(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads them")
    return yaml.safe_load((DEPLOY / name).read_text())


def expressions() -> dict[str, str]:
    """Each query of the dashboard, by panel and letter."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {f"{panel['title']} {one['refId']}": one["expr"] for panel in panels for one in panel["targets"]}


def test_the_rules_are_those_that_the_program_prints() -> None:
    assert (DEPLOY / "llmtop-rules.yml").read_bytes() == RULES.read_bytes()


def test_the_dashboard_and_the_rules_ask_only_for_series_that_there_are() -> None:
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    known = recorded | {one.name for one in names.ALL} | {series.name for _, series in SERIES} | {XID, *DCGM_ONLY}
    for text in (*expressions().values(), RULES.read_text()):
        asked = set(re.findall(rf"(?<![\w:])(?:{LEVELS}:llmtop_[\w:]+|llmtop_\w+|DCGM_FI_\w+)", text))
        assert asked <= known, asked - known
    assert recorded <= set(re.findall(rf"`({LEVELS}:llmtop_[\w:]+)`", contracts())), "they are a contract"


def contracts() -> str:
    return (REPOSITORY / "docs" / "contracts.md").read_text()


@pytest.mark.prometheus
@pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS)
def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    with Prometheus(tmp_path, []) as server:
        for expr in expressions().values():
            server.query(expr.replace("$__rate_interval", "1m").replace("$run", ".*"))


@pytest.mark.prometheus
@pytest.mark.skipif(find("promtool") is None, reason=NO_PROMETHEUS)
def test_promtool_accepts_the_configuration() -> None:
    promtool = find("promtool")
    assert promtool is not None
    command = [promtool, "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


OPERATOR = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
TYPES = {
    "grafana-dashboard.json": (
        'import type { Dashboard } from "./node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen.js";',
        "Partial<Dashboard>",
    ),
    "servicemonitor.yaml": (
        f'import type {{ IServiceMonitor }} from "{OPERATOR}/ServiceMonitor";',
        "IServiceMonitor",
    ),
    "podmonitor.yaml": (
        f'import type {{ IPodMonitor }} from "{OPERATOR}/PodMonitor";',
        "IPodMonitor",
    ),
}


WRONG = "servicemonitor.wrong"


def wrong() -> Any:
    """The one for Prometheus' operator, with a field misspelt."""
    monitor = loaded("servicemonitor.yaml")
    monitor["spec"]["endpoints"][0]["prot"] = monitor["spec"]["endpoints"][0].pop("port")
    return monitor


@pytest.fixture(scope="module")
def type_errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What TypeScript says of each against the published types: in one run, for its start is most of it."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "node_modules").symlink_to(SCHEMAS / "node_modules")
    contents = {name: (*TYPES[name], loaded(name)) for name in TYPES}
    contents[WRONG] = (*TYPES["servicemonitor.yaml"], wrong())
    for name, (line, kind, content) in contents.items():
        (folder / f"{name}.ts").write_text(f"{line}\nexport const it: {kind} = {json.dumps(content)};\n")
    options = {"strict": True, "noEmit": True, "module": "nodenext", "moduleResolution": "nodenext", "types": []}
    files = [f"{name}.ts" for name in contents]
    (folder / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": {**options, "target": "es2022", "skipLibCheck": True}, "files": files})
    )
    tsc = SCHEMAS / "node_modules" / "typescript" / "bin" / "tsc"
    command = ["node", str(tsc), "-p", ".", "--pretty", "false"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout, f"tsc did not run: {done.stderr}"  # one of them is wrong
    found = dict.fromkeys(contents, "")
    name = ""
    for line in done.stdout.splitlines():  # an error is "FILE(LINE,COLUMN): error …", and lines that are indented
        name = name if line.startswith(" ") else line.partition(".ts(")[0]
        assert name in found, done.stdout
        found[name] += line + "\n"
    return found


@pytest.mark.slow("types that a script fetches")
@pytest.mark.schemas
@needs_schemas
@pytest.mark.parametrize("name", TYPES)
def test_it_is_of_its_schema(name: str, type_errors: dict[str, str]) -> None:
    assert type_errors[name] == ""


@pytest.mark.schemas
@needs_schemas
def test_what_is_not_of_its_schema_is_found(type_errors: dict[str, str]) -> None:
    assert "prot" in type_errors[WRONG]


def test_what_compose_mounts_is_there() -> None:
    services = loaded("compose.yaml")["services"]
    mounts = [one.split(":")[0] for service in services.values() for one in service["volumes"]]
    files = [DEPLOY / one for one in mounts if one.startswith(".") and one != "./targets"]
    assert len(files) == 5
    assert all(file.is_file() for file in files)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "llmtop-export.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/llmtop/bin/llmtop", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=240
    )
    assert "llmtop-export" not in done.stderr, done.stderr


PROLOG = DEPLOY / "slurm-task-prolog.sh"
FAKE = """#!/bin/sh
trap 'echo ended > "$0.ended"; exit 0' TERM
echo "$@" > "$0.arguments"; echo loud; echo louder >&2
while :; do sleep 0.1; done
"""


def prolog(tmp_path: Path, **extra: str) -> subprocess.Popen[str]:
    """What stands for slurmstepd, which runs the prolog and then lives on until its input ends."""
    fake = tmp_path / "exporter"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    env = {**os.environ, "LLMTOP_EXPORT": f"{fake} export", "LLMTOP_EXPORT_LOG": str(tmp_path / "log"), **extra}
    script = f'printed=$("{PROLOG}"); echo "[$printed] $?"; read line'
    return subprocess.Popen(
        ["sh", "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_prolog_starts_an_exporter_that_ends_with_the_step_and_prints_nothing(tmp_path: Path) -> None:
    stepd = prolog(tmp_path, SLURM_LOCALID="0", SLURMD_NODENAME="node7", LLMTOP_EXPORT_SD="/shared")
    assert stepd.stdout is not None
    assert stepd.stdout.readline() == "[] 0\n", "Slurm obeys what it prints"
    arguments = tmp_path / "exporter.arguments"
    wait_for(lambda: arguments.exists() and arguments.read_text())
    assert "--file-sd /shared/llmtop-node7-9401.json" in arguments.read_text()
    log = tmp_path / "log"
    wait_for(lambda: log.read_text() == "loud\nlouder\n", what="both lines of the exporter")
    stepd.communicate("\n", timeout=240)
    wait_for((tmp_path / "exporter.ended").exists, what="the exporter to end with the step")


def test_the_prolog_starts_one_a_node_and_never_fails(tmp_path: Path) -> None:
    other = prolog(tmp_path, SLURM_LOCALID="1")
    assert other.communicate("\n", timeout=240)[0] == "[] 0\n"
    assert not (tmp_path / "exporter.arguments").exists()
    missing = prolog(tmp_path, SLURM_LOCALID="0", LLMTOP_EXPORT="/nonexistent/llmtop")
    assert missing.communicate("\n", timeout=240)[0] == "[] 0\n"
    readonly = prolog(tmp_path, SLURM_LOCALID="0", LLMTOP_EXPORT_LOG="/nonexistent/log")
    assert readonly.communicate("\n", timeout=240)[0] == "[] 0\n"

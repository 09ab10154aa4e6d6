"""`llmtop schema`: valid JSON Schema of draft 2020-12, which all that --json prints follows."""

from __future__ import annotations

import importlib
import json
import lzma
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest
from jsonschema import Draft202012Validator

from llmtop.__main__ import COMMANDS, cli
from llmtop.cli.printed import CaptureNotTaken
from llmtop.cli.schema.command import DIALECT, OUTPUTS, json_schema
from llmtop.errors import EXIT_ENVIRONMENT, EXIT_USAGE
from llmtop.format import encode_json
from llmtop.ncu.judge import ncu_report
from llmtop.ncu.read import read as read_ncu
from llmtop.report_kinds.kernels_kind import KernelsDocument
from tests.support import hostile
from tests.support.job_files import traceback_text, write_rank_log
from tests.support.memory_allocator import LOSS, MIB, Allocator, Training
from tests.support.pages import page, servers
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY, WAITS_FOR_RUN_FILE, environment
from tests.support.schemas import schema_faults

DATA = REPOSITORY / "tests" / "data"


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_schema_is_valid_and_printed(name: str) -> None:
    done = llmtop("schema", name)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads(encode_json(json_schema(name)))
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"] == DIALECT


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name != "config"])
def test_values_of_the_type_follow_its_schema(name: str) -> None:
    module, _, attribute = OUTPUTS[name].type.partition(":")
    wanted = getattr(importlib.import_module(module), attribute)
    for number, value in enumerate(hostile.values(wanted)):
        assert not schema_faults(name, json.loads(encode_json(value))), number


def test_a_wrong_value_does_not_follow() -> None:
    good = {"index": 0, "uuid": "GPU-1", "name": "H200", "util_pct": 3.0}
    snapshot = {"schema": 2, "time": 1.0, "source": "live", "host": {"hostname": "a"}, "gpus": [good]}
    bad = {**snapshot, "gpus": [{**good, "util_pct": "3"}]}
    assert len(schema_faults("snapshot", bad)) > len(schema_faults("snapshot", snapshot))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of each kind that a command reads."""
    folder = tmp_path_factory.mktemp("files")
    found = {"folder": folder, "nsys": DATA / "h200" / "nsys" / "launch_bound.sqlite.gz"}
    found["kineto"] = DATA / "h200" / "kineto" / "healthy_with_input_cost.json.gz"
    found["recording"] = REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz"
    found["ncu"] = folder / "gpt0.ncu-rep"
    found["ncu"].write_bytes(lzma.decompress((DATA / "ncu" / "gpt0.ncu-rep.xz").read_bytes()))
    found["stacks"] = folder / "stacks.txt"
    found["stacks"].write_text("main;step (train.py:3);mm (torch/x.py:5) 30\nmain;step (train.py:3) 10\n")
    for name, leak in (("memory", LOSS), ("memory2", 2 * LOSS)):
        allocator = Allocator(capacity=2000 * MIB)
        Training(allocator, leak=leak).steps(4)
        found[name] = allocator.write(folder / f"{name}.pickle")
    found["captures"] = captured_folder(folder)
    found["dead"] = folder / "dead"
    found["dead"].mkdir()
    write_rank_log(found["dead"], 1, traceback_text("ValueError: bad", in_collective=False))
    found["runs"] = run_of_a_training(folder)
    return found


TRAINING = f"""{WAITS_FOR_RUN_FILE}
import time, llmtop
llmtop.attach()
for _ in range(100):
    with llmtop.step():
        time.sleep(0.01)
"""


def run_of_a_training(folder: Path) -> Path:
    """A folder of runs with the run of a short training, by the name `mine`."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    sockets = folder / "s"
    sockets.mkdir(mode=0o700)
    variables = {"LLMTOP_RUNS": str(folder / "runs"), "LLMTOP_RUN_LOG": "1", "LLMTOP_DIR": str(sockets)}
    env = environment(**variables, LLMTOP_RUN_NAME="mine")
    subprocess.run([sys.executable, str(script)], env=env, timeout=240, check=True)
    return folder / "runs"


def captured_folder(folder: Path) -> Path:
    """A folder with one capture that is done."""
    from llmtop.capture.base.folder import Info

    capture = folder / "llmtop-captures" / "20260101-000000-nsys"
    capture.mkdir(parents=True)
    info = Info(engine="nsys", state="done", started_at=1.0, pids=[7], ranks=[0])
    (capture / "capture.json").write_bytes(msgspec.json.encode(info))
    return capture.parent


PRINTED = {
    "replay": ("snapshot", "replay {recording} --json"),
    "report of nsys": ("report", "report {nsys} --json"),
    "report of torch.profiler": ("report", "report {kineto} --json"),
    "report of a recording": ("report", "report {recording} --json"),
    "memory": ("memory", "report {memory} --json"),
    "stacks": ("stacks", "report {stacks} --json"),
    "comparison": ("comparison", "compare {nsys} {kineto} --json"),
    "memory growth": ("memory-growth", "compare {memory} {memory2} --json"),
    "kernels": ("kernels", "kernel {ncu} --json"),
    "kernel commands": ("kernel-commands", "kernel {nsys} --json"),
    "captures": ("capture-listing", "captures --out {captures} --json"),
    "stop": ("orphan-stop", "captures --out {captures} --stop --json"),
    "doctor": ("doctor", "doctor --json"),
    "config": ("config-settings", "config --json"),
    "symptoms": ("symptoms", "which --json"),
    "symptoms of words": ("symptoms", "which GPU memory --json"),
    "postmortem": ("postmortem", "postmortem {dead} --json"),
    "runs": ("run", "runs --json"),
    "tail": ("tail", "tail --json"),
    "demo": ("snapshot", "demo --json"),
    "live": ("snapshot", "--once --json"),
    "record": ("recording", "record {folder}/new.llmtop.gz --seconds 1.5 --interval 0.5 --json"),
}


@pytest.mark.slow(
    "another command prints the same type in a shorter time",
    kept=[name for name in PRINTED if name not in ("replay", "demo", "report of nsys")],
)
@pytest.mark.parametrize(("name", "command"), PRINTED.values(), ids=PRINTED)
def test_what_a_command_prints_follows_its_schema(name: str, command: str, files: dict[str, Path]) -> None:
    env = environment(LLMTOP_RUNS=str(files["runs"]))
    done = llmtop(*(word.format(**files) for word in command.split()), env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    for line in lines[:: max(1, len(lines) // 20)]:
        assert not schema_faults(name, json.loads(line))


def test_removed_captures_follow_their_schema(tmp_path: Path) -> None:
    folder = captured_folder(tmp_path)
    done = llmtop("captures", "--out", folder, "--remove", "all", "--json")
    assert not schema_faults("capture-removal", json.loads(done.stdout))


ELSEWHERE = {
    "bench": "tests/bench/test_runs.py",
    "bundle": "tests/cli/doctor/test_bundle.py",
    "capture-not-taken": "tests/cli/schema/test_schema.py",
    "capture-removal": "tests/cli/schema/test_schema.py",
    "capture-result": "tests/capture/test_capture_commands.py",
    "cluster": "tests/cli/schema/test_schema.py",
    "kernels-list": "tests/cli/schema/test_schema.py",
    "run-removal": "tests/cli/schema/test_schema.py",
}
"""Outputs whose commands need more than a file, each with the test that validates it."""


def commands_with_json() -> set[str]:
    """The names of all commands that have --json."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    return {
        name
        for name, command in commands.items()
        if command is not None and any("--json" in one.opts for one in command.params)
    }


def test_every_command_with_json_has_a_schema() -> None:
    assert commands_with_json() == {command for output in OUTPUTS.values() for command in output.commands}


def test_every_output_of_a_command_is_validated() -> None:
    """A new one is in `PRINTED`, or its own test is in `ELSEWHERE`."""
    validated = {name for name, _ in PRINTED.values()} | set(ELSEWHERE)
    assert {name for name, output in OUTPUTS.items() if output.commands} <= validated
    for name, test in ELSEWHERE.items():
        assert f'schema_faults("{name}"' in (REPOSITORY / test).read_text(), test


WRONG = {
    "live": "--json --once --gpus none",
    "captures": "captures --json --keep x",
    "capture": "capture --json --pid 999999999",
    "bench": "bench --json -- no-such-command",
    "which": "which --json zzz",
    "runs": "runs --json show none",
    "record": "record --json {folder}/none/none.gz",
    "demo": "demo --json --speed x",
    "cluster": "cluster --json",
    "doctor": "doctor --json --loader 999999999",
    "config": "config --json none",
}
"""A command line of each command that fails; of the others: an input that is missing."""


@pytest.mark.parametrize("command", sorted(commands_with_json()))
def test_an_error_with_json_prints_no_json_and_a_sentence(command: str, files: dict[str, Path]) -> None:
    line = WRONG.get(command, f"{command} --json /nonexistent/none /nonexistent/other")
    env = environment(LLMTOP_RUNS=str(files["runs"]), XDG_CONFIG_HOME=str(files["folder"]))
    env.pop("LLMTOP_PROMETHEUS", None)
    done = llmtop(*(word.format(**files) for word in line.split()), env=env)
    assert done.returncode in (EXIT_USAGE, EXIT_ENVIRONMENT), done.stderr
    assert done.stdout == ""
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.slow("trains, to have a run; test_removed_captures_follow_their_schema has captures that are removed")
def test_a_removed_run_follows_its_schema(tmp_path: Path) -> None:
    env = environment(LLMTOP_RUNS=str(run_of_a_training(tmp_path)))
    done = llmtop("runs", "delete", "mine", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert not schema_faults("run-removal", json.loads(done.stdout))


def test_a_capture_that_fails_after_its_trigger_follows_its_schema() -> None:
    assert not schema_faults("capture-not-taken", json.loads(encode_json(CaptureNotTaken(reason="a", error="b"))))


def test_reports_of_several_files_of_ncu_follow_their_schema(files: dict[str, Path]) -> None:
    """`llmtop kernel --run` prints them; it needs a GPU."""
    path = files["ncu"]
    document = KernelsDocument([ncu_report(path, *read_ncu(path))] * 2)
    assert not schema_faults("kernels-list", json.loads(document.json()))


def test_the_nodes_of_a_prometheus_follow_their_schema() -> None:
    with servers("") as serve:
        url = serve(page(b'{"status": "success", "data": {"resultType": "vector", "result": []}}'))
        done = llmtop("cluster", "--prometheus", url, "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert not schema_faults("cluster", json.loads(done.stdout))


def test_an_unknown_name_is_answered_with_the_names() -> None:
    done = llmtop("schema", "snapshots")
    assert done.returncode == 2
    assert "snapshot" in done.stderr
    assert "Traceback" not in done.stderr

"""`llmtop schema`: valid JSON Schema of draft 2020-12, which all that --json prints follows."""

from __future__ import annotations

import importlib
import json
import lzma
from pathlib import Path

import click
import msgspec
import pytest
from jsonschema import Draft202012Validator

from llmtop.__main__ import COMMANDS, cli
from llmtop.cli.schema.command import DIALECT, OUTPUTS, json_schema
from llmtop.format import encode_json
from tests.support import hostile
from tests.support.memory_allocator import LOSS, MIB, Allocator, Training
from tests.support.preloaded import llmtop
from tests.support.processes import REPOSITORY
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
    return found


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
    "live": ("snapshot", "--once --json"),
    "record": ("recording", "record {folder}/new.llmtop.gz --seconds 1.5 --interval 0.5 --json"),
}


@pytest.mark.parametrize(("name", "command"), PRINTED.values(), ids=PRINTED)
def test_what_a_command_prints_follows_its_schema(name: str, command: str, files: dict[str, Path]) -> None:
    done = llmtop(*(word.format(**files) for word in command.split()))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    for line in lines[:: max(1, len(lines) // 20)]:
        assert not schema_faults(name, json.loads(line))


def test_removed_captures_follow_their_schema(tmp_path: Path) -> None:
    folder = captured_folder(tmp_path)
    done = llmtop("captures", "--out", folder, "--remove", "all", "--json")
    assert not schema_faults("capture-removal", json.loads(done.stdout))


def test_every_command_with_json_has_a_schema() -> None:
    context = click.Context(cli)
    with_json = set()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if any("--json" in one.opts for one in command.params):
            with_json.add(name)
    assert with_json == {command for output in OUTPUTS.values() for command in output.commands}


def test_an_unknown_name_is_answered_with_the_names() -> None:
    done = llmtop("schema", "snapshots")
    assert done.returncode == 2
    assert "snapshot" in done.stderr
    assert "Traceback" not in done.stderr

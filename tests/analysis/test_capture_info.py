"""What capture.json says of a training, and what of it is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtop.analysis.capture_info import (
    UNKNOWN_COMMAND,
    CaptureInfo,
    command_of_program,
    is_python,
    read_capture_info,
)
from llmtop.analysis.steps.unprofiled_step import UnprofiledStep


def _read(folder: Path, **fields: object) -> CaptureInfo:
    (folder / "capture.json").write_text(json.dumps(fields))
    return read_capture_info(folder)


def test_a_capture_s_facts_are_those_of_its_file(tmp_path: Path) -> None:
    facts = {
        "command": "python train.py --name it's",
        "steps_wanted": 5,
        "engine": "nsys",
        "step_seconds": {"before_p50": 0.1, "after_p50": 0.2, "profiler_stays": True},
        "pids": [10, 11],
        "ranks": [4, 7],
    }
    found = _read(tmp_path, **facts)
    assert found.command == """python train.py --name 'it'"'"'s'"""
    assert found.steps_wanted == 5
    assert found.unprofiled_step == UnprofiledStep(0.1, 0.2, stays=True)
    assert found.ranks == {10: 4, 11: 7}
    assert read_capture_info(tmp_path / "trace.json") == found, "a file beside it"
    (tmp_path / "traces").mkdir()
    assert read_capture_info(tmp_path / "traces") == found, "the folder of its traces"


def test_without_facts_nothing_is_known(tmp_path: Path) -> None:
    assert _read(tmp_path) == CaptureInfo(UNKNOWN_COMMAND, UnprofiledStep(), None, {})
    for text in ("", "[1]", "{", '{"a": 1}x', "\\xff"):
        (tmp_path / "capture.json").write_text(text)
        assert read_capture_info(tmp_path) == CaptureInfo()
    assert read_capture_info(tmp_path / "none") == CaptureInfo()


@pytest.mark.parametrize("command", [None, 7, "", "  ", ["python"]])
def test_a_command_in_another_form_is_unknown(tmp_path: Path, command: object) -> None:
    assert _read(tmp_path, command=command).command == UNKNOWN_COMMAND


@pytest.mark.parametrize(
    ("wanted", "engine", "known"),
    [
        (1, "nsys", 1),
        (0, "nsys", None),
        (-1, "nsys", None),
        (999_999, "nsys", 999_999),
        (1_000_000, "nsys", None),
        (5.0, "nsys", None),
        (True, "nsys", None),
        ("5", "nsys", None),
        (5, "xla.profiler", None),
        (5, None, 5),
        (5, "jax.profiler", 5),
    ],
)
def test_steps_are_those_that_were_asked_for(
    tmp_path: Path, wanted: object, engine: str | None, known: int | None
) -> None:
    step = {"before_p50": 0.5}
    assert _read(tmp_path, steps_wanted=wanted, engine=engine).steps_wanted == known
    assert _read(tmp_path, steps_wanted=wanted, engine=engine, step_seconds=step).steps_wanted == known


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (0.5, 0.5),
        (1, 1.0),
        (0, None),
        (-1.0, None),
        (86_399.0, 86_399.0),
        (86_400, None),
        ("1", None),
        (None, None),
    ],
)
def test_a_step_takes_less_than_a_day(tmp_path: Path, value: object, known: float | None) -> None:
    found = _read(tmp_path, step_seconds={"before_p50": value, "after_p50": 2.0}).unprofiled_step
    assert found == UnprofiledStep(known, 2.0, stays=False)
    found = _read(
        tmp_path, step_seconds={"before_p50": 2.0, "after_p50": value, "profiler_stays": 1}
    ).unprofiled_step
    assert found == UnprofiledStep(2.0, known, stays=False)


@pytest.mark.parametrize(
    ("pids", "ranks", "known"),
    [
        ([1, 2], [0, 1], {1: 0, 2: 1}),
        ([1, 2], [0, -1], {1: 0}),
        ([1, 2], [0], {}),
        ([1], 0, {}),
        (1, [0], {}),
        ([1, "2"], [True, 1], {}),
        (None, None, {}),
    ],
)
def test_a_rank_belongs_to_the_pid_at_its_place(
    tmp_path: Path, pids: object, ranks: object, known: dict[int, int]
) -> None:
    assert _read(tmp_path, pids=pids, ranks=ranks).ranks == known
    assert _read(tmp_path, pids=pids, ranks=ranks, hosts=["a"]).ranks == {}
    assert _read(tmp_path, pids=pids, ranks=ranks, hosts=[], step_seconds={}).ranks == known


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("python", True),
        ("/usr/bin/python3.11 train.py", True),
        ("pypy3", True),
        ("torchrun", True),
        ("ipython", True),
        ("./solver", False),
        ("python-like", False),
        ("mypython", False),
        ("", None),
        (None, None),
    ],
)
def test_a_process_runs_python_by_its_name(name: str | None, python: bool | None) -> None:
    assert is_python(name) is python


@pytest.mark.parametrize(
    ("command", "name", "plain", "expected"),
    [
        (UNKNOWN_COMMAND, "solver --n 5", True, "./solver"),
        (UNKNOWN_COMMAND, "/opt/bin/solver", True, "./solver"),
        (UNKNOWN_COMMAND, "my solver'", True, "./my"),
        (UNKNOWN_COMMAND, "a;b", True, "'./a;b'"),
        (UNKNOWN_COMMAND, "solver", False, UNKNOWN_COMMAND),
        (UNKNOWN_COMMAND, None, True, UNKNOWN_COMMAND),
        (UNKNOWN_COMMAND, "python3 x.py", True, UNKNOWN_COMMAND),
        ("run.sh", "solver", True, "run.sh"),
        (UNKNOWN_COMMAND, "a" * 15, True, "./PROGRAM"),  # TASK_COMM_LEN is 16 with the end of the text
        (UNKNOWN_COMMAND, "a" * 14, True, "./" + "a" * 14),
        (UNKNOWN_COMMAND, "a" * 16, True, "./" + "a" * 16),
        (UNKNOWN_COMMAND, "/" + "a" * 14, True, "./" + "a" * 14),
    ],
)
def test_a_program_without_python_is_started_by_its_file(
    command: str, name: str | None, plain: bool, expected: str
) -> None:
    assert command_of_program(command, name, plain=plain) == expected

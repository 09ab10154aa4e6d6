"""llmtop capture, captures and doctor, as a shell calls them."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.conftest import Start, Training
from tests.capture.windows import NO_SAMPLES, sampled
from tests.support import preloaded
from tests.support.processes import environment, wait_for
from tests.support.schemas import schema_faults

llmtop = functools.partial(preloaded.llmtop, timeout=240)


def sampled_by_py_spy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`llmtop capture` by py-spy, with a longer window where it had taken no sample."""
    return sampled(
        lambda seconds: llmtop("capture", "-e", "py-spy", "--seconds", str(seconds), *arguments),
        lambda done: NO_SAMPLES not in done.stdout + done.stderr,
    )


def test_a_capture_in_words_names_folder_size_copy_and_open(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start().wait_attached()
    done = llmtop("capture", "--engine", "py-spy", "--steps", "3")
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "llmtop-captures").iterdir()
    assert str(made) in done.stdout
    assert "copy: scp -r " in done.stdout
    assert "open: open https://www.speedscope.app" in done.stdout
    assert "slowest step during the capture" in done.stdout
    assert "free)" in done.stderr, "room is told before"
    for stage in ("start", "record", "stop", "analyse"):
        assert stage in done.stderr


def test_json_stands_alone_on_stdout(start: Start, tmp_path: Path) -> None:
    training = start()
    training.wait_attached()
    done = sampled_by_py_spy("--json", "--out", str(tmp_path / "x"))
    facts = json.loads(done.stdout)
    assert facts["capture"]["pids"] == [training.pid]
    assert facts["report"]["processes"]
    assert Path(facts["folder"]).parent == tmp_path / "x"
    assert not schema_faults("capture-result", facts)
    assert not schema_faults("stacks", facts["report"])
    assert not schema_faults("capture", json.loads((Path(facts["folder"]) / "capture.json").read_text()))


def test_captures_lists_and_removes(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start().wait_attached()
    for _ in range(2):
        sampled_by_py_spy()
    listed = llmtop("captures")
    assert listed.stdout.count("-py-spy") == 2
    assert "2 captures, " in listed.stderr
    lines = [json.loads(line) for line in llmtop("captures", "--json").stdout.splitlines()]
    assert [line["state"] for line in lines] == ["done", "done"]
    name = Path(lines[0]["folder"]).name
    assert "removed" in llmtop("captures", "--remove", name).stdout
    assert llmtop("captures").stdout.count("-py-spy") == 1
    llmtop("captures", "--remove", "all")
    assert "no captures in" in llmtop("captures").stderr


@pytest.fixture(scope="module")
def refusing(start_once: Start) -> Training:
    """A training of which nothing is captured, so that one serves all that is refused."""
    training = start_once()
    training.wait_attached()
    return training


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--engine", "gdb"), 2, "there is no engine 'gdb'"),
        (("--steps", "3", "--seconds", "1"), 2, "exclude each other"),
        (("--rank", "3"), 2, "no attached process is rank 3"),
        (("--when", "step > 1x"), 2, "would fire immediately"),
        (("--option", "no-such"), 2, "there is no option 'no-such'"),
        (("--steps", "0"), 2, "--steps"),
        (("--engine", "nsys"), 3, "nsys cannot capture"),
        (("--engine", "py-spy", "--out", "/proc/x"), 3, "/proc"),
    ],
)
def test_a_capture_that_cannot_be_is_one_sentence_and_an_exit_code(
    refusing: Training, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = llmtop("capture", *arguments)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    refusing.wait_for_steps(2)


def test_nothing_to_capture_is_told(runtime_dir: Path) -> None:
    done = llmtop("capture", "--rank", "0")
    assert done.returncode == 2
    assert "the attached ranks are: none" in done.stderr


def test_ctrl_c_gives_up_the_capture_and_not_the_training(start: Start, tmp_path: Path) -> None:
    training = start()
    training.wait_attached()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "llmtop",
            "capture",
            "-e",
            "py-spy",
            "--seconds",
            "60",
            "--out",
            str(tmp_path / "x"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    wait_for(lambda: list(tmp_path.glob("x/*/capture.json")))
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "cancelled; the training continues" in said
    assert list((tmp_path / "x").iterdir()) == []
    training.wait_for_steps(3)


def test_an_armed_capture_fires_and_prints_its_result(start: Start, tmp_path: Path) -> None:
    start("--step-ms", "20", "--slow-every", "20").wait_attached()
    done = sampled_by_py_spy("--when", "step > 3x", "--json", "--out", str(tmp_path / "x"))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["capture"]["reason"].startswith("step > 3x: step")
    assert "armed: step > 3x" in done.stderr


def test_options_are_listed_with_their_cost() -> None:
    listed = llmtop("capture", "--option", "help")
    assert listed.returncode == 0
    for name in ("gpu-metrics", "cpu-sampling", "osrt", "memory-usage", "python-backtraces", "cuda-graphs-whole"):
        assert f"{name}  (" in listed.stdout
    assert listed.stdout.count("cost:") == listed.stdout.count("\n") // 3


def test_the_doctor_says_for_each_process_and_engine_can_or_why_not(start: Start) -> None:
    training = start()
    training.wait_attached()
    facts = json.loads(llmtop("doctor", "--json").stdout)
    names = {check["name"] for check in facts["checks"]}
    assert {"driver", "nsys", "py-spy", "ptrace", "CPU sampling", "GPU metrics", "sockets", "disk"} <= names
    (found,) = [one for one in facts["trainings"] if one["pid"] == training.pid]
    assert found["attached"]
    engines = {one["engine"]: one for one in found["engines"]}
    assert engines["py-spy"]["can"]
    assert not engines["nsys"]["can"]
    assert engines["nsys"]["because"]
    text = llmtop("doctor")
    assert text.returncode == 0
    assert f"pid {training.pid}, attached" in text.stdout
    assert "to fix:" in text.stdout

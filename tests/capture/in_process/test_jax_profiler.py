"""Windows that a real JAX training takes of itself by jax.profiler, and that never stand in a script's own way."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.report.model import Report, from_json
from tests.support.captured_steps import whole_steps
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.real_jax import JAX, MARKS

pytestmark = MARKS


class Loop:
    """tests/support/jax_loop.py in a process, once it has stepped."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.process = subprocess.Popen(
            [str(JAX), "-m", "tests.support.jax_loop", str(folder), *options],
            env=environment(JAX_PLATFORMS="cpu"), cwd=REPOSITORY, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def stepping(self) -> Loop:
        wait_for(lambda: (self.folder / "steps").exists() or self.process.poll() is not None, 90, "its steps")
        return self

    def capture(self, *options: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "llmtop", "capture", "--pid", str(self.process.pid), *options]
        return subprocess.Popen(
            [*command, "--out", str(self.folder / "captures")],
            env=environment(), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
        )  # fmt: skip

    def captured(self, *options: str) -> tuple[int, str, Path | None]:
        """Exit code, what it said on stderr, and the folder that it made."""
        _, said = (taking := self.capture(*options)).communicate(timeout=240)
        folders = sorted((self.folder / "captures").glob("2*")) if (self.folder / "captures").exists() else []
        return taking.returncode, said, folders[-1] if folders else None

    def ended(self) -> str:
        """What it printed, once it was told to stop."""
        (self.folder / "stop").touch()
        told = self.process.communicate(timeout=240)[0]
        assert self.process.returncode == 0, told
        return told


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Any]:
    made: list[Loop] = []

    def start(*options: str) -> Loop:
        made.append(Loop(tmp_path / f"loop{len(made)}", *options))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.communicate(timeout=240)


def report_of(folder: Path | None) -> Report:
    assert folder is not None
    return from_json((folder / "report.json").read_bytes())


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="JAX 0.6, the last for 3.10, tells no operations of the CPU"
)
def test_a_window_with_steps_phases_and_operations_changes_no_result(loop: Any) -> None:
    training = loop("--steps", "600").stepping()
    code, said, folder = training.captured("--engine", "jax.profiler", "--steps", "6")
    assert (code, said) == (0, said), said
    report = report_of(folder)
    assert report.engine == "jax.profiler"
    assert whole_steps(report) == 6
    phases = {phase.name: phase.host_seconds for phase in report.phases}
    assert {"dataload", "update of the weights"} <= set(phases)
    assert phases["dataload"] >= 0.005, "what the loop sleeps"
    # "idle" where other programs have the CPUs: the computation then waits for one, beside the sleep of the loop.
    assert report.verdict in ("input_bound", "idle")
    assert report.devices[0].pid == training.process.pid
    assert report.operators
    names = sorted(path.name.partition(".")[2] for path in (folder / "traces").iterdir())
    assert names == ["trace.json.gz", "xplane.pb"]
    told = training.process.communicate(timeout=240)[0]
    plain = loop("--steps", "600", "--input-ms", "0", "--by", "none").process.communicate(timeout=240)[0]
    assert re.search("loss .*", told)[0] == re.search("loss .*", plain)[0]  # type: ignore[index]
    assert "lock lock None" in told, "JAX has its own lock again"


def test_it_is_the_best_engine_for_jax_and_doctor_says_so(loop: Any) -> None:
    training = loop().stepping()
    found = subprocess.run(
        [sys.executable, "-m", "llmtop", "doctor", "--json"],
        env=environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    (mine,) = [one for one in json.loads(found.stdout)["trainings"] if one["pid"] == training.process.pid]
    engines = {one["engine"]: one for one in mine["engines"]}
    assert engines["jax.profiler"]["can"]
    assert engines["torch.profiler"]["because"] == "it has not imported torch"
    code, said, folder = training.captured("--steps", "3")
    assert code == 0, said
    assert report_of(folder).engine == "jax.profiler"


def test_steps_of_llmtop_s_own_context_are_marked_and_python_s_calls_are_there_when_asked_for(loop: Any) -> None:
    training = loop("--by", "plain").stepping()
    code, said, folder = training.captured("--engine", "jax.profiler", "--steps", "5", "--option", "stacks")
    assert code == 0, said
    report = report_of(folder)
    assert whole_steps(report) == 5
    assert "range 'step'" in report.steps.found_by
    (trace,) = (folder / "traces").glob("*.trace.json.gz")  # type: ignore[operator]
    names = [one.get("name", "") for one in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert any(name.startswith("$") for name in names), "calls of Python"
    assert "lock lock None" in training.ended()


def test_it_leaves_a_trace_of_the_script_alone(loop: Any) -> None:
    training = loop().stepping()
    (training.folder / "trace").touch()
    wait_for(lambda: training.captured("--engine", "jax.profiler", "--steps", "2")[0] == 3, 60)
    code, said, _ = training.captured("--engine", "jax.profiler", "--steps", "2")
    assert (code, sum("llmtop:" in line for line in said.splitlines())) == (3, 1)
    assert "the script records with jax.profiler itself" in said
    (training.folder / "traced").touch()
    wait_for(lambda: not (training.folder / "trace").exists(), 60)
    assert list((training.folder / "own").glob("plugins/profile/*/*.trace.json.gz"))
    assert training.captured("--engine", "jax.profiler", "--steps", "2")[0] == 0, "now it may"
    assert "traced" in training.ended()


def test_it_makes_way_for_a_trace_that_the_script_begins(loop: Any) -> None:
    training = loop().stepping()
    taking = training.capture("--engine", "jax.profiler", "--steps", "900")
    for line in taking.stderr:
        if "record" in line:
            break
    (training.folder / "trace").touch()
    _, said = taking.communicate(timeout=240)
    assert taking.returncode == 3
    assert "the script began a trace of jax.profiler itself" in said
    (training.folder / "traced").touch()
    wait_for(lambda: not (training.folder / "trace").exists(), 60)
    told = training.ended()
    assert "traced" in told
    assert "Error" not in told
    assert list((training.folder / "own").glob("plugins/profile/*/*.trace.json.gz"))
    assert not list((training.folder / "captures").glob("*")), "nothing of ours is left"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_capture_that_ends_early_leaves_jax_as_it_was(loop: Any, how: signal.Signals) -> None:
    training = loop().stepping()
    taking = training.capture("--engine", "jax.profiler", "--steps", "300", start_new_session=True)
    for line in taking.stderr:
        if "record" in line:
            break
    taking.send_signal(how)
    taking.communicate(timeout=240)
    if how == signal.SIGINT:
        code, said, _ = training.captured("--engine", "jax.profiler", "--steps", "2")
        assert code == 0, said
    else:
        wait_for(lambda: training.captured("--engine", "jax.profiler", "--steps", "2")[0] == 0, 60)
    assert "lock lock None" in training.ended()


def test_a_training_that_ends_within_its_window_ends_as_it_would(loop: Any) -> None:
    training = loop().stepping()
    taking = training.capture("--engine", "jax.profiler", "--steps", "900")
    for line in taking.stderr:
        if "record" in line:
            break
    assert "loss" in training.ended()
    _, said = taking.communicate(timeout=240)
    assert taking.returncode == 3
    assert "ended" in said


def test_it_starts_no_devices(tmp_path: Path) -> None:
    """A script may still call jax.distributed.initialize(), which must come before."""
    program = (
        "import time, jax, llmtop\n"
        "from pathlib import Path\n"
        f"while not Path({str(tmp_path / 'stop')!r}).exists():\n"
        "    with llmtop.step(): time.sleep(0.01)\n"
        f"    Path({str(tmp_path / 'steps')!r}).touch()\n"
        "from jax._src import xla_bridge\n"
        "print('started', xla_bridge.backends_are_initialized())\n"
    )
    env = environment(JAX_PLATFORMS="cpu")
    with subprocess.Popen([str(JAX), "-c", program], env=env, stdout=subprocess.PIPE, text=True) as process:
        wait_for((tmp_path / "steps").exists, 60)
        command = [
            sys.executable,
            "-m",
            "llmtop",
            "capture",
            "--engine",
            "jax.profiler",
            "--pid",
            str(process.pid),
        ]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "captures")],
            env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        (tmp_path / "stop").touch()
        told = process.communicate(timeout=240)[0]
    assert done.returncode == 3
    assert "JAX has not started its devices yet" in done.stderr
    assert told == "started False\n"


def test_a_jax_that_keeps_its_trace_elsewhere_is_not_offered() -> None:
    program = (
        "import sys, jax\n"
        "from llmtop.instrument.control import self_capture\n"
        "print(self_capture.engines())\n"
        "del sys.modules['jax._src.profiler']._profile_state\n"
        "print(self_capture.engines())\n"
    )
    done = subprocess.run(
        [str(JAX), "-c", program],
        env=environment(JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.split("\n")[:2] == ["['jax.profiler']", "[]"]

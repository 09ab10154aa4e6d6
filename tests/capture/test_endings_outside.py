"""Trainings that end while a tool outside of them records: nsys, and the Kineto that each PyTorch brings along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.capture.conftest import NVTX
from tests.support.endings import LONG_SECONDS, PROGRAM, Ready
from tests.support.installed import needs
from tests.support.processes import REPOSITORY, environment, wait_for

needs("torch")
pytestmark = pytest.mark.torch
ENDS = {"return": 0, "raise": 1, "_exit": 7}
"""Words of the training, and its exit code without llmtop."""


@contextmanager
def recording(engine: str, runtime_dir: Path, out: Path) -> Iterator[tuple[Ready, subprocess.Popen[str]]]:
    """A training that is being recorded, and the llmtop that has it recorded."""
    path = os.pathsep.join([str(NVTX), str(REPOSITORY)])
    argv = [sys.executable, "-m", "llmtop", "run", f"--{engine}", "--", *PROGRAM, "--plain"]
    with Ready(argv, LLMTOP_DIR=str(runtime_dir), PYTHONPATH=path) as training:
        options = ["--pid", str(training.pid), "--engine", engine, "--out", str(out), "--json"]
        capture = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "capture", *options, "--steps", "500"],
            env=environment(LLMTOP_DIR=str(runtime_dir)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with capture:
            assert capture.stderr is not None
            for line in capture.stderr:
                if "record" in line and "start" not in line:
                    break
            training.tell("step 5")
            yield training, capture
            capture.kill()


@pytest.mark.slow("a capture by nsys; test_a_captured_training_ends_as_it_would_without has a recorder within")
@pytest.mark.nsys
@pytest.mark.usefixtures("real_nsys")
@pytest.mark.parametrize("word", ENDS)
def test_a_training_that_nsys_collects_from_ends_as_it_would_without(
    word: str, runtime_dir: Path, tmp_path: Path
) -> None:
    with recording("nsys", runtime_dir, tmp_path) as (training, capture):
        training.tell(word)
        assert training.wait(LONG_SECONDS) == ENDS[word]
        capture.communicate(timeout=LONG_SECONDS)
        assert capture.returncode in (0, 3), "what was collected until then, or one sentence"
        assert not list(runtime_dir.glob("*.lock"))
        for folder in tmp_path.iterdir():
            assert json.loads((folder / "capture.json").read_bytes())["state"] in ("done", "partial", "failed")


@pytest.mark.slow("a capture by Kineto; test_a_captured_training_ends_as_it_would_without has a recorder within")
@pytest.mark.parametrize("word", ENDS)
def test_a_training_that_kineto_records_ends_as_it_would_without(
    word: str, runtime_dir: Path, tmp_path: Path
) -> None:
    with recording("kineto", runtime_dir, tmp_path) as (training, capture):
        training.tell(word)
        assert training.wait(LONG_SECONDS) == ENDS[word]
        said = capture.communicate(timeout=LONG_SECONDS)[1]
        assert capture.returncode == 3
        assert "ended before its trace was written" in said
        assert list(tmp_path.iterdir()) == []
        assert not list(runtime_dir.glob("*.lock"))
        wait_for(lambda: not list(runtime_dir.glob("k-*")), 30, "the host to go")

"""Pythons that ignore what `llmtop run` prepares: it is said, at the start and by the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.launch.uninstrumentable import unsupported_python_flag
from tests.launch.conftest import LLMTOP
from tests.support.processes import environment, wait_for
from tests.support.trainings import PATIENT_SERVER


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("python train.py", None),
        ("python -I train.py", "-I"),
        ("/usr/bin/python3.11 -uE train.py", "-E"),
        ("python3.13t -X dev -S train.py", "-S"),
        ("python -Xdev -W error -I -m train", "-I"),
        ("python -m train -I", None),
        ("python -c pass -I", None),
        ("python train.py -I", None),
        ("python -- -I", None),
        ("python - -I", None),
        ("python --version", None),
        ("python -X", None),
        ("ruby -I lib train.rb", None),
        ("", None),
    ],
)
def test_the_options_that_make_it_deaf(command: str, option: str | None) -> None:
    found = unsupported_python_flag(command.split())
    assert (found or "").partition(" ")[0] == (option or "")


@pytest.mark.slow("starts trainings that cannot be seen")
@pytest.mark.torch
def test_it_is_said_at_the_start_and_by_the_doctor(runtime_dir: Path, script: Callable[[str], list[str]]) -> None:
    _, path = script("import torch, time; print('ready', flush=True); time.sleep(100)")
    short = Path(path).with_name("t.py")
    Path(path).rename(short)
    process = subprocess.Popen(
        [*LLMTOP, "--", sys.executable, "-I", "t.py", "--token", "hunter2"],
        cwd=short.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def notes() -> list[str]:
            command = [sys.executable, "-m", "llmtop", "doctor", "--json"]
            done = subprocess.run(
                command, env=environment(), capture_output=True, text=True, check=True, timeout=240
            )
            return [note for note in json.loads(done.stdout)["notes"] if f"pid {process.pid} " in note]

        (note,) = wait_for(notes)
        assert "python -I (isolated) ignores its environment" in note
        assert "hunter2" not in note
        assert "--token" in note
    finally:
        process.kill()
        _, said = process.communicate(timeout=240)
    assert said.startswith("llmtop: not attached: python -I (isolated) ignores its environment")


def test_a_name_or_a_folder_that_a_terminal_would_obey_is_printed_as_text(
    runtime_dir: Path, tmp_path: Path
) -> None:
    obeyed = "t\x1b]0;x\x07\x9b2J\u202e"
    (tmp_path / f"{obeyed}.py").write_text("pass")
    attached = f"{PATIENT_SERVER}import llmtop; llmtop.attach(); llmtop.step().__enter__()"
    (runtime_dir / obeyed).mkdir(mode=0o700)
    scripts = {"not attached: t·]0;x··2J·.py": [f"{obeyed}.py"], "LLMTOP_DIR=": ["-c", attached]}
    for expected, command in scripts.items():
        done = subprocess.run(
            [*LLMTOP, "--", sys.executable, *command],
            cwd=tmp_path,
            env=environment(LLMTOP_DIR=str(runtime_dir / obeyed)),
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0
        assert expected in done.stderr
        assert done.stderr.replace("\n", "").isprintable()

"""Words of a command line, names of folders and variables may be bytes that are no UTF-8: each output works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from llmtop.recording.reader_writer import Reader
from tests.support import preloaded
from tests.support.processes import environment, repeat_until

ODD = b"odd\x9b\xff\x1b[2J" + "\x9b2J\u202e".encode()
TRAINING = """
import llmtop, time
llmtop.attach()
print("ready", flush=True)
while True:
    with llmtop.step():
        time.sleep(0.02)
"""


@pytest.fixture
def training(runtime_dir: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    folder = os.fsencode(tmp_path) + b"/" + ODD
    os.mkdir(folder)
    script = tmp_path / "t.py"
    script.write_text(TRAINING)
    env: dict[bytes, bytes] = {os.fsencode(name): os.fsencode(value) for name, value in environment().items()}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, ODD],
        cwd=folder,
        env={**env, b"NCCL_DEBUG": ODD},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=240)


@pytest.mark.slow("six commands; test_bytes_that_are_no_text_do_not_break_the_stream has the monitor's side")
def test_json_recordings_and_captures_of_such_a_training(
    training: subprocess.Popen[str], tmp_path: Path, runtime_dir: Path
) -> None:
    env = environment(LLMTOP_DIR=str(runtime_dir), HOME=str(tmp_path))

    def llmtop(*arguments: str) -> str:
        done = preloaded.llmtop(*arguments, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for command in ("--once", "doctor"):
        llmtop(command)
        assert json.loads(repeat_until(partial(llmtop, command, "--json"), lambda out: "odd" in out))
    recording = tmp_path / "r.llmtop.gz"
    llmtop("record", str(recording), "--seconds", "5")
    assert any(snapshot.ranks for _, snapshot in Reader(recording).snapshots())
    out = tmp_path / "captures"
    llmtop("capture", "--engine", "py-spy", "--seconds", "0.5", "--out", str(out))
    (captured,) = out.iterdir()
    assert "odd" in json.loads((captured / "capture.json").read_bytes())["command"]
    for file in captured.iterdir():
        assert file.read_text().replace("\n", "").isprintable(), f"{file.name} may be read in a terminal"

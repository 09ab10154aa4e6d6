"""`llmtop doctor --bundle`: what it holds is listed first, and no secret or personal name is in it."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from llmtop.cli.doctor.bundle import redacted
from tests.support.processes import environment
from tests.support.schemas import schema_faults

SECRET = "hunter2-Xk29-ffe1"


def _bundle(folder: Path, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    state, config = folder / "state" / "llmtop", folder / "config" / "llmtop"
    state.mkdir(parents=True, exist_ok=True)
    config.mkdir(parents=True, exist_ok=True)
    for number in range(7):
        text = f"Traceback\n  password={SECRET}\n  File {Path.home()}/train.py by {getpass.getuser()}\n"
        (state / f"error-2026010{number}-1-1.log").write_text(text)
    (config / "config.toml").write_text(
        f'# was http://me:{SECRET}@prom:9090\n[cluster]\nprometheus = "http://prom:9090"\n'
    )
    where = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    return subprocess.run(
        [sys.executable, "-m", "llmtop", "doctor", "--bundle", *options],
        cwd=cwd or folder,
        env={**environment(), **where},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def _files(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {one.name: archive.extractfile(one) for one in archive}
        return {name.partition("/")[2]: file.read().decode() for name, file in found.items() if file is not None}


def test_what_it_holds_is_listed_and_masked(tmp_path: Path) -> None:
    done = _bundle(tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("llmtop-bundle-*.tar.gz")
    assert path.stat().st_mode & 0o777 == 0o600
    files = _files(path)
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert listed[: len(files)] == list(files)
    assert done.stdout.index("errors/") < done.stdout.index("written: ")
    assert len([name for name in files if name.startswith("errors/")]) == 5
    assert json.loads(files["snapshot.json"])["schema"] == 2
    assert json.loads(files["doctor.json"])["checks"]
    assert json.loads(files["settings.json"])["cluster"]["prometheus"] == "http://prom:9090"
    everything = "".join(files.values())
    assert SECRET not in everything
    assert str(Path.home()) + "/" not in everything
    assert json.loads(files["machine.json"])["host"] == "HOST"


@pytest.mark.slow("a second bundle; test_what_it_holds_is_listed_and_masked has one")
def test_with_json_stdout_is_json_alone(tmp_path: Path) -> None:
    done = _bundle(tmp_path, "--json")
    assert not schema_faults("bundle", json.loads(done.stdout))
    assert "doctor.json" in done.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = _bundle(tmp_path, cwd=Path("/proc"))
    assert done.returncode == 3
    assert "/proc/llmtop-bundle" in done.stderr
    assert "Traceback" not in done.stderr


def test_words_are_replaced_as_whole_words() -> None:
    words = {"/home/ann": "~", "ann": "USER"}
    assert redacted("ann /home/ann/x annex /home/anna", words) == "USER ~/x annex /home/anna"
    assert json.loads(redacted('{"api_key": "abc", "user": "bob", "n": 3}', words)) == {
        "api_key": "***", "user": "USER", "n": 3,
    }  # fmt: skip

"""`make newcomer`: its parts, on a clone of this checkout; the whole is run by hand."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import newcomer
from tests.support.processes import REPOSITORY


def test_the_steps_are_those_of_the_readme_and_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert newcomer.main(["--dry-run"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(newcomer.STEPS)
    done = subprocess.run(
        ["make", "-n", "newcomer"], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=True
    )
    assert "tests.support.newcomer" in done.stdout


def test_a_step_that_fails_is_reported_with_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    who = newcomer.Newcomer(pwd.getpwuid(os.getuid()), tmp_path, sys.executable)
    fails = {"clone": lambda one: one.run("sh", "-c", "echo disk full; exit 7", where=tmp_path)}
    monkeypatch.setattr(newcomer, "STEPS", fails)
    assert newcomer.take(who, ["clone"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "exit code 7\ndisk full" in printed


def test_an_ordinary_user_is_not_root_where_the_machine_has_another() -> None:
    found = newcomer.ordinary_user()
    assert found.pw_uid != 0
    assert os.getuid() in (0, found.pw_uid)


def test_a_user_who_cannot_run_python_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    who = newcomer.Newcomer(pwd.getpwuid(os.getuid()), tmp_path, "/bin/false")
    assert newcomer.take(who, ["clone"]) == 3
    assert "cannot run /bin/false" in capsys.readouterr().out

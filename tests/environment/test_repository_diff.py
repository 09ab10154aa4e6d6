"""What is stored of the changes to a commit: their hash and statistics, and their text only on request."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from llmtop.environment.collect import as_dict
from llmtop.environment.model import CommandEnvironment, Machine, Repository
from llmtop.environment.repository import repository


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "init", "-q"], check=True, timeout=240)
    (tmp_path / "config.py").write_text('PASSWORD = "hunter2"\nx = 1\n')
    subprocess.run([*git, "add", "config.py"], check=True, timeout=240)
    subprocess.run([*git, "commit", "-qm", "x"], check=True, timeout=240)
    return tmp_path


def test_hash_and_statistics_are_stored_and_no_text(folder: Path) -> None:
    (folder / "config.py").write_text("x = 2\n")
    found = repository(folder, diff="hash")
    assert found is not None
    raw = subprocess.run(
        ["git", "-C", str(folder), "diff", "HEAD"], check=True, capture_output=True, timeout=240
    ).stdout
    assert found.diff_sha256 == hashlib.sha256(raw).hexdigest()
    assert found.diff_stat is not None
    assert "config.py | 3 +--" in found.diff_stat
    assert found.diff is None
    assert "hunter2" not in str(found)


def test_the_hash_tells_apart_what_no_text_does(folder: Path) -> None:
    """Bytes that are no UTF-8, and ends of lines, are changes too."""
    hashes = set()
    for content in (b"x = 2\n", b"x = 2\r\n", b"x = '\xe9'\n", b"x = '\xe8'\n"):
        (folder / "config.py").write_bytes(content)
        found = repository(folder, diff="hash")
        assert found is not None
        hashes.add(found.diff_sha256)
    assert len(hashes) == 4
    assert None not in hashes


def test_the_text_is_stored_on_request_without_the_password_that_it_removes(folder: Path) -> None:
    (folder / "config.py").write_text("x = 2\n")
    found = repository(folder, diff="text")
    assert found is not None
    assert found.diff is not None
    assert "-PASSWORD = " in found.diff
    assert "+x = 2" in found.diff
    assert "hunter2" not in found.diff


def test_nothing_is_stored_where_nothing_is_asked_for(folder: Path) -> None:
    (folder / "config.py").write_text("x = 2\n")
    found = repository(folder, diff="none")
    assert found is not None
    assert (found.diff, found.diff_sha256, found.diff_stat) == (None, None, None)
    assert found.dirty


def test_two_runs_of_other_changes_differ_in_their_main_facts_and_headers_have_no_text() -> None:
    found = [
        CommandEnvironment(
            collected_at=1.0,
            machine=Machine(host="node"),
            git=Repository(commit="9fceb02d0ae5", dirty=True, diff="+x", diff_sha256=letter * 64),
        )
        for letter in "ab"
    ]
    assert [one.main_facts()["changes"] for one in found] == ["a" * 12, "b" * 12]
    assert all(as_dict(one)["git"]["diff"] is None for one in found)

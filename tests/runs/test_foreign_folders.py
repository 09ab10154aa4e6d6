"""Runs of other users, and what else lies in a folder of runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmtop.runs import store
from llmtop.runs.retention import delete_old_runs
from tests.support.made_runs import write_run


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that may be read, and one that may not: also as root, who may read all."""
    write_run(tmp_path, "mine", [0.5] * 20)
    theirs = write_run(tmp_path, "theirs", [0.5] * 20)
    theirs.chmod(0)
    whole = os.access

    def access(path: Path, mode: int) -> bool:
        return path != theirs and whole(path, mode)

    monkeypatch.setattr(os, "access", access)
    return theirs


def test_a_run_of_another_user_hides_no_other(closed: Path) -> None:
    unreadable: list[Path] = []
    (run,) = store.list_runs(closed.parent, unreadable)
    assert run.name == "mine"
    assert unreadable == [closed]


def test_a_folder_with_runs_of_others_alone_is_no_empty_one(closed: Path) -> None:
    (mine,) = (path for path in closed.parent.iterdir() if path.is_dir() and path != closed)
    for path in mine.iterdir():
        path.unlink()
    mine.rmdir()
    with pytest.raises(PermissionError, match="theirs"):
        store.list_runs(closed.parent)


def test_what_is_no_run_is_neither_listed_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    (tmp_path / "etc").symlink_to("/etc")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "notes" / "todo.txt", tmp_path / "notes"):
        os.utime(path, (0, 0))
    assert store.list_runs(tmp_path) == []
    assert delete_old_runs(tmp_path, days=1, most_bytes=0) == []
    assert (tmp_path / "notes" / "todo.txt").exists()

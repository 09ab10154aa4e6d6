"""Size and free space of checkpoints, also where the file system does not reply."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from collectors.trainings import disk_watch
from collectors.trainings.disk_watch import MOST_STUCK, DiskUse, DiskWatch


def _answer(watch: DiskWatch, path: str, version: int = 1) -> DiskUse | None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        use = watch.get(path, version)
        if use is not None:
            return use
        time.sleep(0.01)
    return None


def test_a_folder_has_the_size_of_its_files_and_the_space_of_its_disk(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "inner" / "b").write_bytes(b"x" * 234)
    use = _answer(DiskWatch(), str(tmp_path))
    assert use is not None
    assert use.size_bytes == 1234
    assert use.total_bytes == pytest.approx(shutil.disk_usage(tmp_path).total)


def test_a_path_that_is_not_here_has_no_figures() -> None:
    assert _answer(DiskWatch(), "/no/such/folder/of/another/machine") == DiskUse()


def test_a_file_system_that_does_not_reply_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, asked = threading.Event(), []
    real = os.statvfs

    def hangs(path: str) -> os.statvfs_result:
        asked.append(path)
        replies.wait(240)
        return real(path)

    monkeypatch.setattr(disk_watch.os, "statvfs", hangs)
    watch, paths = DiskWatch(), [str(tmp_path / name) for name in "abcdefgh"]
    for _ in range(3):
        for path in paths:
            (tmp_path / path).touch()
            assert watch.get(path, 1) is None
    deadline = time.monotonic() + 120
    while len(asked) < MOST_STUCK and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(asked) == MOST_STUCK
    replies.set()
    assert _answer(watch, paths[0]) is not None

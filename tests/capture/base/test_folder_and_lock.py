"""A capture's folder, and the lock that keeps two of them apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmtop.capture import take
from llmtop.capture.base import folder
from llmtop.capture.base.folder import Info
from llmtop.capture.base.lock import CaptureLock, Holder, orphaned_captures, running_captures
from llmtop.capture.nsys import orphans
from llmtop.errors import NotPossibleHere, UnusableInput
from tests.support.processes import environment, wait_for


def info(**more: object) -> Info:
    return Info(**{"engine": "nsys", "started_at": time.time(), **more})  # type: ignore[arg-type]


def holder(**more: object) -> Holder:
    given = {"pid": os.getpid(), "engine": "nsys", "since": time.time(), "began": time.monotonic(), "target": 7}
    return Holder(**{**given, **more})  # type: ignore[arg-type]


def test_two_captures_of_one_second_get_two_folders(tmp_path: Path) -> None:
    made = {folder.make_folder(tmp_path / "captures", "nsys") for _ in range(3)}
    assert len(made) == 3
    assert all(path.name.startswith(time.strftime("%Y")) and "-nsys" in path.name for path in made)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPossibleHere, match=r"(is a file|Not a directory).*--out"):
        folder.make_folder(tmp_path / "file", "nsys")
    with pytest.raises(NotPossibleHere, match=r"cannot be written: .*--out"):
        folder.make_folder(Path("/proc/none"), "nsys")


def test_too_little_room_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleHere, match=r"only .* are free at .*--out.*llmtop captures --remove"):
        folder.check_disk(tmp_path / "not" / "there" / "yet", minimum=1 << 60)
    assert folder.check_disk(tmp_path / "not" / "there" / "yet", minimum=1) > 1


def test_what_is_written_is_read_again_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "trace.sqlite").write_bytes(b"12345")
    folder.write_info(tmp_path, info(pids=[7], ranks=[None]))
    again = folder.read_info(tmp_path)
    assert [(file.name, file.bytes) for file in again.files] == [("trace.sqlite", 5)]
    assert again.pids == [7]


def test_a_write_that_fails_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(tmp_path / "report.json", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(NotPossibleHere, match="is full"):
        folder.write(tmp_path / "report.json", b"new")
    assert (tmp_path / "report.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_only_captures_are_removed(tmp_path: Path) -> None:
    mine = folder.make_folder(tmp_path, "nsys")
    folder.write_info(mine, info())
    (mine / "trace").write_bytes(b"x" * 1000)
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "link").symlink_to(mine)
    for not_one in ("precious", "link", "none"):
        with pytest.raises(UnusableInput):
            folder.remove(tmp_path / not_one)
    assert folder.remove(mine) > 1000
    assert not mine.exists()
    assert precious.exists()


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"engine": 1}', b"\xff\xfe", b"[]"])
def test_a_damaged_capture_is_told_and_left_out_of_the_list(tmp_path: Path, damaged: bytes) -> None:
    path = folder.make_folder(tmp_path, "nsys")
    (path / folder.INFO).write_bytes(damaged)
    with pytest.raises(UnusableInput, match="damaged"):
        folder.read_info(path)
    assert folder.list_infos(tmp_path) == []


def test_the_commit_of_the_trainings_folder_is_told(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    identity = ("-c", "user.name=x", "-c", "user.email=x@y")
    subprocess.run(["git", "init", "-q", str(repository)], check=True, timeout=240)
    (repository / "train.py").write_text("1")
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True, timeout=240)
    subprocess.run(["git", "-C", str(repository), *identity, "commit", "-qm", "x"], check=True, timeout=240)
    process = subprocess.Popen(["sleep", "600"], cwd=repository)

    def state() -> folder.Git | None:
        found = folder.git_state(process.pid)
        return None if found is None or found.dirty is None else found  # git took longer than is waited for

    try:
        clean = wait_for(state, what="git")
        (repository / "train.py").write_text("2")
        changed = wait_for(state, what="git")
    finally:
        process.kill()
        process.wait(100)
    assert clean is not None
    assert changed is not None
    assert (clean.dirty, changed.dirty) == (False, True)
    assert clean.commit == changed.commit
    assert len(clean.commit) == 40


def test_the_copy_line_is_the_way_this_person_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.5 50000 10.0.0.9 2222")
    assert take.copy_command(Path("/data/a b")) == "scp -r -P 2222 ada@10.0.0.9:'/data/a b' ."


def test_a_lock_is_for_one_and_free_again_after(runtime_dir: Path) -> None:
    with CaptureLock("pid-7", holder()) as lock:
        assert [one.target for one in running_captures()] == [7]
        assert orphaned_captures() == []
        with pytest.raises(NotPossibleHere, match=rf"another llmtop \(pid {os.getpid()}\)"):
            CaptureLock("pid-7", holder())
        CaptureLock("pid-8", holder(target=8)).release()
        assert lock.orphan is None
    assert list(runtime_dir.iterdir()) == []
    CaptureLock("pid-7", holder()).release()


def test_the_lock_of_a_killed_llmtop_is_free_and_says_what_it_was(runtime_dir: Path) -> None:
    script = (
        "import os, time\n"
        "from llmtop.capture.base.lock import CaptureLock, Holder\n"
        "held = {'pid': os.getpid(), 'engine': 'nsys', 'since': 1.0, 'began': 1.0}\n"
        "CaptureLock('pid-7', Holder(**held, session='42', target=7))\n"
        "lock = CaptureLock('pid-9', Holder(**held, target=9))\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    # only the lock that is still referred to is held; the other went with its object
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    process.stdout.readline()
    assert 9 in [one.target for one in running_captures()]
    process.kill()
    process.wait(100)
    wait_for(lambda: running_captures() == [], what="the kernel to free the lock")
    assert {one.target for _, one in orphaned_captures()} >= {9}
    with CaptureLock("pid-9", holder(target=9)) as lock:
        assert lock.orphan is not None
        assert lock.orphan.pid == process.pid
    assert [line for line in orphans.orphan_messages() if "session" in line] == []
    assert list(orphans.stop_orphans())
    assert orphaned_captures() == []


def test_a_capture_whose_llmtop_was_killed_is_listed_as_cut_short(runtime_dir: Path, tmp_path: Path) -> None:
    path = folder.make_folder(tmp_path, "nsys")
    running = info(pids=[7])
    folder.write_info(path, running)
    assert orphans.capture_state(path, running) == "cut short"
    with CaptureLock("pid-7", holder()):
        assert orphans.capture_state(path, running) == "running"
    assert orphans.capture_state(path, info(state="done")) == "done"


def test_how_long_a_capture_has_run_is_told_by_no_clock_that_can_be_set() -> None:
    hour_ahead = holder(since=time.time() + 3600, began=time.monotonic() - 5)
    assert 5 <= hour_ahead.held_seconds() < 600
    before_the_boot = holder(since=time.time() - 9, began=time.monotonic() + 1e6)
    assert 9 <= before_the_boot.held_seconds() < 600

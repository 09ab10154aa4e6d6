"""docs/containers.md and docs/users.md: a training in a pid namespace of its own, and one of another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY, environment, wait_for

TOY = [sys.executable, "-m", "tests.support.toy_training", "--step-ms", "20"]
OTHER_UID = 54_321
"""That nobody has."""


def ranks(*before: str) -> list[dict[str, Any]]:
    """The trainings that a monitor sees to step; `before` is put in front of its command."""
    command = [*before, sys.executable, "-m", "llmtop", "--json", "--once"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["ranks"]
    return [rank for rank in found if rank["step"]]


@contextmanager
def started(*command: str, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed with the group it is of."""
    process = subprocess.Popen(
        command, env=environment(**extra), cwd=REPOSITORY, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(100)


def unshared() -> list[str]:
    """The command that starts another in a pid namespace; skips where that is not allowed."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=240, check=False)
    except OSError as error:
        pytest.skip(f"no unshare: {error}")
    if done.returncode:
        pytest.skip(f"no pid namespace can be made: {done.stderr.strip()}")
    return command


@pytest.mark.namespaces
def test_a_training_in_a_pid_namespace_is_seen_through_a_shared_socket_folder(runtime_dir: Path) -> None:
    with started(*unshared(), *TOY):
        (rank,) = wait_for(ranks, 60, "the training in the namespace")
        assert rank["pid"] > 1, "by the pid of the monitor's side"
        assert b"toy_training" in Path(f"/proc/{rank['pid']}/cmdline").read_bytes()


@pytest.mark.slow("a host or a driver's process of its own")
@pytest.mark.namespaces
def test_a_monitor_in_the_namespace_sees_one_outside_and_says_which_it_is(runtime_dir: Path) -> None:
    within = unshared()
    with started(*TOY):
        wait_for(ranks, 60)
        # With `--once`, a training whose first contact takes long is left out.
        assert len(wait_for(lambda: ranks(*within), 60, "the training outside")) == 1


@pytest.fixture
def as_another() -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can become a second user")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not on this machine")
    command = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups"]
    reads = subprocess.run(
        [*command, *TOY[:1], "-c", "import llmtop"], cwd=REPOSITORY, capture_output=True, check=False, timeout=240
    )
    if reads.returncode:
        pytest.skip("another user may not read this checkout or its interpreter")
    return command


@pytest.mark.slow("a host or a driver's process of its own")
def test_a_second_user_sees_his_own_training_and_root_sees_both(as_another: list[str]) -> None:
    environ = environment()
    environ.pop("LLMTOP_DIR", None)
    once = [sys.executable, "-m", "llmtop", "--json", "--once"]

    def seen(*before: str) -> set[int]:
        done = subprocess.run(
            [*before, *once], env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=True
        )
        return {rank["pid"] for rank in json.loads(done.stdout)["ranks"] if rank["state"] == "running"}

    mine = subprocess.Popen(TOY, env=environ, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    theirs = subprocess.Popen([*as_another, *TOY], env=environ, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: mine.pid in seen(), 60, "root's own")
        of_second = wait_for(lambda: theirs.pid in (found := seen(*as_another)) and found, 60, "his own")
        assert mine.pid not in of_second, "another's training is not his to see"
    finally:
        for process in (mine, theirs):
            process.kill()
            process.wait(100)
        shutil.rmtree(f"/tmp/llmtop-{OTHER_UID}", ignore_errors=True)

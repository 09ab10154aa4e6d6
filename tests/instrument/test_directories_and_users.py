"""Where a training publishes: other users, disks that are full or read-only, clocks, pids, and odd directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment, wait_for
from tests.support.trainings import PATIENT_SERVER, Heard, Training, connect, socket_of, sockets

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


# --- users and disks ---------------------------------------------------------------------------------------------


@pytest.mark.slow("a host or a driver's process of its own")
@needs_root
def test_after_setuid_the_end_is_silent_and_root_still_sees_it(runtime_dir: Path) -> None:
    script = """
import os, llmtop
with llmtop.step(): pass
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with llmtop.step(): pass
print("another user", flush=True)
input()
"""
    with Training(script) as training:
        training.hear("another user")
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: len(heard.steps) == 2)
        training.go()
        assert training.finish() == ("", "")
    with Training("import llmtop\nwith llmtop.step(): pass\ninput()") as following:
        assert socket_of(runtime_dir, following.pid)
        following.go()
        following.finish()


def _mounted(directory: Path, options: str) -> bool:
    return not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)],
        capture_output=True,
        check=False,
        timeout=240,
    ).returncode


@needs_root
def test_a_directory_that_becomes_read_only_prints_nothing_at_the_end(runtime_dir: Path) -> None:
    if not _mounted(runtime_dir, "mode=700"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        with Training("import llmtop\nwith llmtop.step(): pass\ninput()") as training:
            heard = Heard(connect(runtime_dir, training))
            heard.until(lambda: heard.steps)
            subprocess.run(["mount", "-o", "remount,ro", str(runtime_dir)], check=True, timeout=240)
            training.go()
            assert training.finish() == ("", "")
            heard.to_the_end()
        with Training(PATIENT_SERVER + "import llmtop\nwith llmtop.step(): pass") as refused:
            _, err = refused.finish()
        assert err.startswith(f"llmtop: not publishing: no socket can be made in {runtime_dir}: Read-only file")
        assert err.count("\n") == 1
    finally:
        subprocess.run(["umount", "-l", str(runtime_dir)], check=True, timeout=240)


@needs_root
def test_a_full_disk_is_said_and_the_training_runs(runtime_dir: Path) -> None:
    if not _mounted(runtime_dir, "mode=700,nr_inodes=2"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        (runtime_dir / "full").touch()
        with Training(PATIENT_SERVER + "import llmtop\nwith llmtop.step(): pass\nprint('ran')") as training:
            out, err = training.finish()
        assert out == "ran\n"
        assert err.startswith(f"llmtop: not publishing: no socket can be made in {runtime_dir}: No space left")
    finally:
        subprocess.run(["umount", "-l", str(runtime_dir)], check=True, timeout=240)


def test_a_clock_that_jumps_moves_no_step(runtime_dir: Path) -> None:
    script = """
import time, llmtop
real, real_ns, jump = time.time, time.time_ns, [0.0]
time.time = lambda: real() + jump[0]
time.time_ns = lambda: real_ns() + int(jump[0] * 1e9)
for number in range(30):
    jump[0] = (-86400.0, 0.0, 86400.0)[number // 10]
    with llmtop.step(): time.sleep(0.001)
input()
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: len(heard.steps) == 30)
        # The wall clock's time less what it is ahead of the steady clock, as each message says of its steps.
        began = [step.started_unix_ns - batch.unix_offset_ns for batch in heard.batches for step in batch.steps]
        assert began == sorted(began)
        assert began[-1] - began[0] < 30e9
        training.go()
        training.finish()


def test_the_socket_of_an_earlier_process_of_the_same_pid_is_removed(runtime_dir: Path) -> None:
    script = """
import os, socket
stale = os.environ["LLMTOP_DIR"] + f"/{os.getpid()}-deadbeef.sock"
socket.socket(socket.AF_UNIX).bind(stale)
os.utime(stale, (1, 1))
import llmtop
with llmtop.step(): pass
input()
"""
    with Training(script) as training:
        wait_for(lambda: [file.path.name for file in sockets(runtime_dir) if "deadbeef" not in file.path.name])
        assert len(sockets(runtime_dir)) == 1
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        training.finish()


@pytest.mark.slow("a host or a driver's process of its own")
@needs_root
def test_two_users_see_their_own_trainings_and_take_no_place_of_each_other(tmp_path: Path) -> None:
    # All is loaded before: another user may not be able to read this Python's libraries.
    as_user = (
        "import os, llmtop.instrument.startup, llmtop.instrument.serve.server, encodings.idna\n"
        "import llmtop.instrument.control.self_capture\n"
        "os.setgroups([]); os.setgid({uid}); os.setuid({uid})\nos.environ.pop('LLMTOP_DIR', None)\n"
    )
    train = f"{PATIENT_SERVER}import llmtop\nwith llmtop.step(): pass\nprint('up', flush=True)\ninput()\n"
    places = [Path(f"/tmp/llmtop-{uid}") for uid in (61001, 61002, 61003)]
    try:
        with (
            Training(as_user.format(uid=61001) + train) as first,
            Training(as_user.format(uid=61002) + train) as second,
        ):
            for training in (first, second):
                training.hear("up")
            assert [file.pid for file in sockets(places[0])] == [], "root is told that it is another user's"
            assert len(list(places[0].glob("*.sock"))) == len(list(places[1].glob("*.sock"))) == 1
            look = "from llmtop.protocol.client import discover\nfrom llmtop.protocol import socket_dir\n"
            look += "print([f.pid for f in discover(socket_dir.runtime_dir())], flush=True)\n"
            with Training(as_user.format(uid=61001) + look) as monitor:
                assert monitor.finish()[0] == f"[{first.pid}]\n"
            for training in (first, second):
                training.go()
                training.finish()
        places[2].mkdir(0o700)  # somebody was there first
        os.chown(places[2], 61001, 61001)
        with Training(as_user.format(uid=61003) + train) as squatted:
            squatted.hear("up")
            squatted.go()
            assert squatted.finish()[1].startswith(
                "llmtop: not publishing: /tmp/llmtop-61003 belongs to uid 61001"
            )
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


# --- where the sockets are ---------------------------------------------------------------------------------------


@pytest.mark.slow(
    "one relative path stands for both; each trains",
    kept=(
        "made/by/llmtop",
        "~/made/by/llmtop",
    ),
)
@pytest.mark.parametrize("given", ["~/made/by/llmtop", "made/by/llmtop", "./made/../made/by/llmtop"])
def test_both_sides_find_a_directory_that_is_relative_or_in_the_home(runtime_dir: Path, given: str) -> None:
    script = f"""
import os
os.chdir({str(runtime_dir)!r})
import llmtop
with llmtop.step(): pass
os.chdir("/")
print("up", flush=True)
input()
"""
    there = runtime_dir / "made/by/llmtop"
    with Training(script, LLMTOP_DIR=given, HOME=str(runtime_dir)) as training:
        training.hear("up")
        heard = Heard(connect(there, training))
        heard.until(lambda: heard.steps)
        assert [path.stat().st_mode & 0o777 for path in (there, there.parent)] == [0o700, 0o700]
        doctor = [sys.executable, "-m", "llmtop", "doctor", "--json"]
        assert _doctor(doctor, runtime_dir, given) == {"ok": True, "says": str(there)}
        training.go()
        training.finish()
    assert sockets(there) == [], "removed although the script stands elsewhere"


def _doctor(command: list[str], folder: Path, given: str) -> dict[str, object]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(LLMTOP_DIR=given, HOME=str(folder)),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "sockets"]
    return {"ok": check["ok"], "says": check["says"]}


@pytest.mark.slow(
    "three doctors; test_both_sides_find_a_directory_that_is_relative_or_in_the_home has such directories"
)
def test_the_doctor_says_no_where_a_training_says_that_it_cannot_publish(runtime_dir: Path) -> None:
    (runtime_dir / "file").touch()
    doctor = [sys.executable, "-m", "llmtop", "doctor", "--json"]
    for given in (str(runtime_dir / ("d" * 100)), str(runtime_dir / "file/run")):
        with Training(f"{PATIENT_SERVER}import llmtop\nwith llmtop.step(): pass", LLMTOP_DIR=given) as training:
            said = training.finish()[1]
        check = _doctor(doctor, runtime_dir, given)
        assert check["ok"] is False
        assert said.startswith("llmtop: not publishing: ")
        assert str(check["says"]).split(":")[0].split(" ")[0] in said
    assert _doctor(doctor, runtime_dir, str(runtime_dir / "not/yet"))["ok"] is None


@pytest.mark.parametrize("length", [85, 86])
def test_the_longest_directory_is_the_one_that_is_named(runtime_dir: Path, length: int) -> None:
    path = runtime_dir / ("d" * (length - len(str(runtime_dir)) - 1))
    with Training(
        f"{PATIENT_SERVER}import llmtop\nwith llmtop.step(): pass\ninput()", LLMTOP_DIR=str(path)
    ) as training:
        if length == 85:
            heard = Heard(connect(path, training))
            heard.until(lambda: heard.steps)
        training.go()
        said = training.finish()[1]
    assert ("85" in said) == (length > 85)

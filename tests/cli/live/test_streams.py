"""llmtop --once, --json, record and replay as programs, over the driver's stand-in and a real training."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest

from llmtop.cli.live.stream import ENDING
from llmtop.recording.reader_writer import Reader, Writer
from tests.support import nvml_stub, preloaded
from tests.support.processes import REPOSITORY, environment, repeat_until, wait_for
from tests.support.snapshots import gpu, snapshot
from tests.support.trainings import socket_of

DEMO = str(REPOSITORY / "llmtop" / "data" / "demo.llmtop.gz")
Llmtop = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Eight GPUs of which the fourth looks busy and is not."""
    eight = nvml_stub.Scenario.eight_gpus()
    eight.set(3, util=100, power_watts=120)
    return eight.write(tmp_path / "scenario")


@pytest.fixture
def llmtop(runtime_dir: Path, scenario: Path) -> Iterator[Llmtop]:
    """Start llmtop with these arguments; all are ended at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **kwargs: Any) -> subprocess.Popen[str]:
        env = nvml_stub.environment(nvml_stub.build(), scenario, **environment(LLMTOP_DIR=str(runtime_dir)))
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "llmtop", *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=kwargs.pop("stdout", subprocess.PIPE),
                stderr=subprocess.PIPE,
                text=True,
                **kwargs,
            )
        )
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait(100)


def finished(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def test_once_shows_gpus_and_a_training_on_a_page(llmtop: Llmtop, runtime_dir: Path) -> None:
    training = subprocess.Popen(
        [sys.executable, "-m", "tests.support.toy_training", "--tokens", "100", "--step-ms", "5"],
        env=environment(LLMTOP_DIR=str(runtime_dir), RANK="0", WORLD_SIZE="1"),
        stdout=subprocess.DEVNULL,
    )
    socket_of(runtime_dir, training.pid)

    def shown() -> str | None:
        out, err = finished(llmtop("--once"))
        assert err == ""
        # On a busy machine it waits too short for the driver or the training.
        return out if out.count("NVIDIA H200") == 8 and "forward" in out else None

    out = wait_for(shown, what="the GPUs and the training's steps")
    training.kill()
    training.wait(100)
    assert out is not None
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("NVIDIA H200") == 8
    assert "power 120 W of 700 W" in out
    assert f"pid {training.pid}" in out
    assert "Rank 0 of 1  running" in out
    assert "forward" in out


@pytest.mark.slow(
    "a screen that records, or MIG that appears late; test_what_is_recorded_is_what_was_streamed has a recording"
)
def test_once_waits_for_mig_instances(llmtop: Llmtop, scenario: Path) -> None:
    parts = nvml_stub.Scenario(count=1).mig(0, 7, used=1 << 30, total=18 << 30)
    parts.mig(0, 9, used=1 << 30, total=18 << 30).delay("nvmlDeviceGetMigMode", 400_000).write(scenario)

    def once(*how: str) -> str:
        return finished(llmtop("--once", *how))[0]

    def activity(out: str) -> list[float | None]:
        return [gpu["sm_active_pct"] for gpu in json.loads(out)["gpus"][1:]]

    out = repeat_until(lambda: once("--json"), lambda out: len(activity(out)) == 2 and all(activity(out)))
    assert activity(out) == [94.0, 94.0]
    text = repeat_until(once, lambda text: "MIG 0:1" in text)
    assert "MIG 0:0  H200 MIG 1g.18gb" in text
    assert "MIG 0:1  H200 MIG 1g.18gb" in text


def test_once_json_is_one_object_with_rates_in_it(llmtop: Llmtop) -> None:

    def with_rates() -> dict[str, Any] | None:
        out, err = finished(llmtop("--once", "--json", "--gpus", "1,3"))
        assert err == ""
        (line,) = out.splitlines()
        one: dict[str, Any] = json.loads(line)
        # On a busy machine it waits too short for two samples of the driver.
        return one if one["gpus"] and one["gpus"][0]["sm_active_pct"] is not None else None

    one = wait_for(with_rates, what="the GPUs with their rates")
    assert one is not None
    assert [each["index"] for each in one["gpus"]] == [1, 3]
    assert one["gpus"][1]["power_watts"] == 120
    assert one["host"]["cpu_pct"] is not None
    assert one["source"] == "live"
    assert set(one) == {
        *("schema", "time", "monotonic", "source", "host", "gpus", "processes", "ranks", "jobs", "alerts"),
        "stuck_communicators",
    }


@pytest.mark.slow("one signal stands for all; each starts a monitor", kept=("15",))
@pytest.mark.parametrize("number", ENDING)
def test_json_gives_a_line_as_soon_as_it_is_known_and_ends_cleanly(llmtop: Llmtop, number: int) -> None:
    stream = llmtop("--json", "--interval", "0.2")
    assert stream.stdout is not None
    times = [json.loads(stream.stdout.readline())["time"] for _ in range(4)]
    assert times == sorted(times)
    stream.send_signal(number)
    out, err = finished(stream)
    assert err == ""
    for line in out.splitlines():
        json.loads(line)  # none is cut


@pytest.mark.slow("a monitor of its own; test_a_reader_that_goes_away_costs_no_traceback has a command")
def test_json_into_a_closed_pipe_ends_quietly(llmtop: Llmtop) -> None:
    read, write = os.pipe()
    stream = llmtop("--json", "--interval", "0.1", stdout=write)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert json.loads(pipe.readline())["schema"] == 2
    _, err = stream.communicate(timeout=240)
    assert stream.returncode == 0
    assert err == ""


PRINTING = [
    ("--json",),
    ("--once",),
    ("--once", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("report", DEMO),
    ("report", "--json", DEMO),
    ("compare", DEMO, DEMO),
    ("replay", "--json", DEMO),
    ("capture", "--option", "help"),
    ("--help",),
    ("--version",),
]


@pytest.mark.slow(
    "a command of each way of printing",
    kept=(
        "--json",
        "--once",
        "doctor",
        "--help",
    ),
)
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_an_output_that_is_full_is_one_sentence(llmtop: Llmtop, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        _, err = finished(llmtop(*arguments, stdout=full), 3)
    assert err == "llmtop: standard output cannot be written: No space left on device\n"


@pytest.mark.slow("one command stands for all; each is a process", kept=("--once",))
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_an_output_that_is_closed_is_one_sentence(arguments: tuple[str, ...]) -> None:
    command = shlex.join([sys.executable, "-m", "llmtop", *arguments])
    done = subprocess.run(
        f"{command} >&-",
        shell=True,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=REPOSITORY,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (
        3,
        b"llmtop: standard output is closed: start llmtop with a standard output, such as > FILE\n",
    )


@pytest.mark.slow("one command stands for all; each is a process", kept=("--once",))
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "llmtop", *arguments]
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run(
            command,
            stdout=gone,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=REPOSITORY,
            check=False,
            timeout=240,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow("one command stands for all; each is a process", kept=("--once",))
@pytest.mark.parametrize("arguments", PRINTING[1:], ids=" ".join)
def test_an_output_that_lacks_a_character_ends_nothing(arguments: tuple[str, ...]) -> None:
    env = environment(PYTHONIOENCODING="iso8859-5")  # no ×, no µ
    command = [sys.executable, "-m", "llmtop", *arguments]
    done = subprocess.run(command, capture_output=True, env=env, cwd=REPOSITORY, check=False, timeout=240)
    assert done.returncode == 0
    assert done.stdout
    assert not done.stderr


@pytest.mark.slow("test_a_slow_consumer_gets_fewer_snapshots_and_never_two_at_once finds the same fault")
def test_a_reader_that_stops_reading_holds_up_only_itself(llmtop: Llmtop) -> None:
    stream = llmtop("--json", "--interval", "0.1", pipesize=4096)  # a line has some kilobytes
    assert stream.stdout is not None
    stream.stdout.readline()
    began = time.monotonic()
    time.sleep(3)
    intervals = (time.monotonic() - began) / 0.1
    memory = int(Path(f"/proc/{stream.pid}/statm").read_text().split()[1])
    stream.send_signal(signal.SIGTERM)
    out, _ = finished(stream)
    assert memory * 4096 < 200 << 20
    times = [json.loads(line)["time"] for line in out.splitlines()]
    assert times == sorted(times)
    assert len(times) < intervals / 2, "what was not read in time is left out"


def test_what_is_recorded_is_what_was_streamed(llmtop: Llmtop, tmp_path: Path) -> None:
    path = tmp_path / "run.llmtop.gz"
    stream = llmtop("--json", "--interval", "0.2", "--record", str(path))
    assert stream.stdout is not None
    lines = [stream.stdout.readline() for _ in range(6)]
    stream.send_signal(signal.SIGTERM)
    out, _ = finished(stream)
    recorded = [one.time for _, one in Reader(path).snapshots()]
    assert recorded == [json.loads(line)["time"] for line in [*lines, *out.splitlines()]]


@pytest.mark.slow(
    "a screen that records, or MIG that appears late; test_what_is_recorded_is_what_was_streamed has a recording"
)
def test_the_screen_records_too_and_the_recording_plays_on_it(
    runtime_dir: Path, scenario: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.llmtop.gz"
    env = nvml_stub.environment(nvml_stub.build(), scenario, **environment(LLMTOP_DIR=str(runtime_dir)))
    env |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}

    def watch(*arguments: str, until: Callable[[], bool] = lambda: True) -> None:
        screen = pexpect.spawn(
            sys.executable, ["-m", "llmtop", *arguments], env=env, dimensions=(45, 140), timeout=240
        )
        screen.expect_exact("H200")
        wait_for(until)
        screen.send("q")
        screen.expect(pexpect.EOF)
        screen.close()
        assert screen.exitstatus == 0

    watch("--interval", "0.25", "--record", str(path), until=lambda: path.exists() and Reader(path).count >= 3)
    assert Reader(path).count >= 3
    watch("replay", str(path))


@pytest.mark.slow(
    "test_what_is_recorded_is_what_was_streamed finds much of it, and tests/collectors/test_replay.py the rest"
)
def test_record_then_replay(llmtop: Llmtop, tmp_path: Path) -> None:
    path = tmp_path / "run.llmtop.gz"
    out, err = finished(llmtop("record", str(path), "--seconds", "1.5", "--interval", "0.25", "--json"))
    facts = json.loads(out)
    assert facts["path"] == str(path)
    assert facts["snapshots"] >= 1
    assert "ctrl+c" in err
    out, err = finished(llmtop("replay", str(path), "--json"))
    assert err == ""
    again = [json.loads(line) for line in out.splitlines()]
    assert len(again) == facts["snapshots"]
    assert {one["source"] for one in again} == {"replay"}


def _gpus_at_the_end(path: Path) -> list[int]:
    """Return the indices of the GPUs in a recording's last snapshot."""
    with closing(Reader(path)) as reader:
        snapshots = [snapshot for _, snapshot in reader.snapshots()]
    return [gpu.index for gpu in snapshots[-1].gpus] if snapshots else []


def test_record_ends_whole_on_a_signal(llmtop: Llmtop, tmp_path: Path) -> None:
    path = tmp_path / "run.llmtop.gz"
    recording = llmtop("record", str(path), "--interval", "0.1")
    wait_for(lambda: path.exists() and path.stat().st_size > 2000)
    wait_for(lambda: _gpus_at_the_end(path) == list(range(8)), what="eight GPUs in the recording")
    recording.send_signal(signal.SIGINT)
    _, err = finished(recording)
    reader = Reader(path)
    assert reader.damage is None
    assert f"{reader.count} snapshots" in err
    assert _gpus_at_the_end(path) == list(range(8))


def test_a_paced_replay_takes_the_time_that_was_recorded(llmtop: Llmtop, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", host="node")
    for i in range(9):
        writer.write(snapshot(1000.0 + i, gpus=(gpu(),)))
    writer.close()
    started = time.monotonic()
    out, _ = finished(llmtop("replay", str(tmp_path / "r"), "--json", "--speed", "8"))
    assert len(out.splitlines()) == 9
    assert time.monotonic() - started >= 1.0


@pytest.mark.slow("a whole monitor; test_a_full_disk_is_one_sentence_and_leaves_whole_members has the recording")
def test_the_disk_fills_and_the_stream_goes_on(llmtop: Llmtop, tmp_path: Path) -> None:
    stream = llmtop(
        "--json",
        "--interval",
        "0.1",
        "--record",
        str(tmp_path / "r"),
        preexec_fn=_small_files,
    )
    assert stream.stdout is not None
    notes = ""
    for _ in range(100):
        notes = " ".join(json.loads(stream.stdout.readline())["host"]["notes"])
        if "failed" in notes:
            break
    assert "File too large" in notes
    json.loads(stream.stdout.readline())
    stream.send_signal(signal.SIGTERM)
    _, err = finished(stream, 3)
    assert err.count("\n") == 1
    assert "the part written before is complete" in err
    assert Reader(tmp_path / "r").damage is None


def _small_files() -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--interval", "0"), 2, "0.1"),
        (("--interval", "nan", "--json"), 2, "0.1"),
        (("--interval", "1e9", "--json"), 2, "3600"),
        (("--gpus", "first", "--once"), 2, "nvidia-smi -L"),
        (("no-such-command",), 2, "there is no command"),
        (("--no-such-option",), 2, "No such option"),
        (("replay", "{tmp}/none", "--json"), 2, "cannot be opened"),
        (("replay", "{tmp}", "--json"), 2, "cannot be opened"),
        (("replay", "{empty}", "--json"), 2, "empty"),
        (("replay", "{foreign}", "--json"), 2, "not a recording"),
        (("replay", "{foreign}"), 2, "not a recording"),
        (("record", "{foreign}"), 2, "--force"),
        (("record", "{tmp}/no/folder"), 3, "cannot be written"),
        (("--json", "--record", "{foreign}"), 2, "--force"),
        ((), 2, "llmtop --json or llmtop --once"),
        (("replay", "{foreign}", "--speed", "100", "--json"), 2, "16"),
    ],
)
def test_wrong_usage_is_one_sentence_and_the_documented_code(
    runtime_dir: Path, scenario: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    empty, foreign = tmp_path / "empty", tmp_path / "foreign"
    empty.touch()
    foreign.write_text("somebody's notes")
    env = nvml_stub.environment(nvml_stub.build(), scenario, **environment(LLMTOP_DIR=str(runtime_dir)))
    given = (each.format(tmp=tmp_path, empty=empty, foreign=foreign) for each in arguments)
    done = preloaded.llmtop(*given, env=env)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert word in done.stderr
    assert foreign.read_text() == "somebody's notes"


def test_help_names_the_commands_and_the_options_of_the_monitor(llmtop: Llmtop) -> None:
    out, _ = finished(llmtop("-h"))
    for word in ("record", "replay", "demo", "--interval", "--gpus", "--once", "--json", "--record"):
        assert word in out

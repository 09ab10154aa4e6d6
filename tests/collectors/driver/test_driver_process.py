"""The driver's library crashes, hangs or is killed in the process that asks it, and the monitor goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import collectors.driver.source
from collectors.base.source import GpuReading
from collectors.driver import child as driver_child
from collectors.driver.source import DriverSource
from llmtop.model.snapshot import Gpu
from llmtop.recording.reader_writer import Reader
from tests.support.nvml_stub import GIB, SCENARIO_VARIABLE, Scenario, build, environment, gpu_uuid
from tests.support.processes import environment as own_environment
from tests.support.processes import wait_for
from tests.support.readings import gpu_when, reading_when
from tests.support.terminal import Terminal

CALL = "nvmlDeviceGetPowerUsage"
CRASHED = "the driver's library crashed (SIGSEGV)"
LLMTOP = [sys.executable, "-m", "llmtop"]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Eight GPUs of the stand-in for whatever process is started from here."""
    scenario = Scenario.eight_gpus()
    path = scenario.write(tmp_path / "scenario")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build().parent))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return scenario


@pytest.fixture
def driver(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverSource]:
    """A source that samples ten times a second and tries again soon; it has been started."""
    monkeypatch.setattr(collectors.driver.source, "RESTART_SECONDS", (0.3, 1.5))
    source = DriverSource(0.1)
    source.start()
    yield source
    source.close()


def well(gpu: Gpu) -> bool:
    return gpu.error is None and gpu.util_pct is not None and gpu.sm_active_pct is not None


def all_well(reading: GpuReading) -> bool:
    return len(reading.gpus) == 8 and all(map(well, reading.gpus))


def driver_pids(monitor: int) -> list[int]:
    """The processes that ask the driver for that monitor."""
    found = []
    for child in psutil.Process(monitor).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two questions
            if child.name() == "llmtop-driver" and child.status() != "zombie":
                found.append(child.pid)
    return found


def the_driver_pid(monitor: int) -> int:
    return wait_for(lambda: driver_pids(monitor), what="a process that asks the driver")[0]


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == "zombie"
    return True


def test_the_reading_is_that_of_the_driver(scenario: Scenario, driver: DriverSource) -> None:
    scenario.set(3, util=17, clock_event_reasons=4, energy_joules=99).process(2, 4_000_001, GIB, sm=60).write()
    reading = reading_when(driver, lambda r: all_well(r) and r.uses and r.gpus[3].util_pct == 17)
    assert [gpu.uuid for gpu in reading.gpus] == [gpu_uuid(slot) for slot in range(8)]
    assert (reading.driver_version, reading.cuda_version, reading.notes) == ("580.159.04", "13.0", ())
    use = reading_when(driver, lambda r: r.uses and r.uses[0].sm_pct is not None).uses[0]
    assert (use.pid, use.gpu_uuid, use.mem_bytes, use.sm_pct) == (4_000_001, gpu_uuid(2), GIB, 60.0)
    gpu = gpu_when(driver, 3, lambda gpu: gpu.energy_joules == 99)
    assert gpu.clock_event_reasons == ("sw_power_cap",)


def test_the_monitor_itself_loads_neither_driver_nor_binding(scenario: Scenario) -> None:
    assert scenario.path is not None
    code = (
        "import sys, time\nfrom collectors.driver.source import DriverSource\n"
        "source = DriverSource(0.1); source.start()\n"
        "while not source.latest().gpus: time.sleep(0.02)\n"
        "source.close()\n"
        "print('pynvml' in sys.modules, 'nvidia-ml' in open('/proc/self/maps').read())"
    )
    env = environment(build(), scenario.path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("False False\n", "")


@pytest.mark.slow("one signal stands for all", kept=("11",))
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_is_said_with_the_time_of_the_next_try_and_survived(
    scenario: Scenario, driver: DriverSource, number: signal.Signals
) -> None:
    reading_when(driver, all_well)
    first = the_driver_pid(os.getpid())
    scenario.crash(CALL, number, gpu=5).write()
    reading = reading_when(driver, lambda r: r.notes and "asked again in" in r.notes[0])
    # A slow test reads it after the second or third crash, each of which doubles the time.
    said = rf"the driver's library crashed \({number.name}\); it is asked again in [12] s"
    assert re.search(said, reading.notes[0])
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(slot, gpu_uuid(slot)) for slot in range(8)]
    assert all(gpu.util_pct is None and gpu.error == reading.notes[0] for gpu in reading.gpus)
    assert reading.uses == ()
    scenario.mend(CALL, gpu=5).write()  # before each further crash has doubled the time until the next start
    wait_for(lambda: the_driver_pid(os.getpid()) != first, what="another process")
    reading = reading_when(driver, all_well)
    assert f"the driver's library crashed ({number.name}) at " in reading.notes[0], "it is still told afterwards"
    assert reading.notes[0].endswith("and was started again")


@pytest.mark.slow("a host or a driver's process of its own")
def test_the_tries_grow_rarer_while_it_crashes(scenario: Scenario, driver: DriverSource) -> None:
    scenario.crash("nvmlInitWithFlags").write()
    wait_for(lambda: any("in 2 s" in note for note in driver.latest().notes), what="a longer wait")
    assert CRASHED in driver.latest().notes[0]
    assert driver.latest().gpus == ()
    scenario.mend("nvmlInitWithFlags").write()
    reading_when(driver, all_well)


@pytest.mark.slow(
    "waits out a silence; test_a_gpu_that_hangs_takes_no_neighbour_and_no_process_with_it has one of a GPU"
)
def test_one_that_is_stopped_is_noticed_and_comes_back(driver: DriverSource) -> None:
    reading_when(driver, all_well)
    pid = the_driver_pid(os.getpid())
    os.kill(pid, signal.SIGSTOP)
    reading = reading_when(driver, lambda r: r.notes)
    assert "the process that asks the driver has not answered for" in reading.notes[0]
    assert all(gpu.util_pct is None for gpu in reading.gpus)
    os.kill(pid, signal.SIGCONT)
    assert reading_when(driver, all_well).notes == ()
    assert the_driver_pid(os.getpid()) == pid


@pytest.mark.slow("a host or a driver's process of its own")
def test_one_that_stays_silent_is_replaced(driver: DriverSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.driver.source, "MAX_SILENT_HEARTBEATS", 4)
    reading_when(driver, all_well)
    pid = the_driver_pid(os.getpid())
    os.kill(pid, signal.SIGSTOP)
    reading_when(driver, lambda r: all_well(r) and the_driver_pid(os.getpid()) != pid)
    assert gone(pid)


def test_a_gpu_that_hangs_takes_no_neighbour_and_no_process_with_it(
    scenario: Scenario, driver: DriverSource
) -> None:
    reading_when(driver, all_well)
    pid = the_driver_pid(os.getpid())
    scenario.hang(CALL, gpu=3).set(4, util=12).write()
    gpu_when(driver, 3, lambda gpu: "the driver has not answered for" in (gpu.error or ""))
    gpu_when(driver, 4, lambda gpu: gpu.util_pct == 12 and well(gpu))
    assert the_driver_pid(os.getpid()) == pid
    scenario.mend(CALL, gpu=3).write()
    reading_when(driver, all_well)


def test_a_changed_pace_reaches_it(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DriverSource(3600)
    source.start()
    gpu_when(source, 0, well)
    source.set_interval(0.1)
    scenario.set(0, util=3).write()
    gpu_when(source, 0, lambda gpu: gpu.util_pct == 3)
    source.close()


def test_closing_ends_it_also_inside_a_call_that_hangs(scenario: Scenario) -> None:
    source = DriverSource(0.1)
    source.start()
    reading_when(source, all_well)
    pid = the_driver_pid(os.getpid())
    scenario.hang(CALL, gpu=3).write()
    gpu_when(source, 3, lambda gpu: gpu.error is not None)
    source.close()
    wait_for(lambda: gone(pid))
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "llmtop-driver"])


def test_closing_before_the_start_is_nothing(scenario: Scenario) -> None:
    DriverSource(0.1).close()
    assert driver_pids(os.getpid()) == []


@pytest.mark.slow(
    "test_a_crash_is_said_with_the_time_of_the_next_try_and_survived has a process that is started again"
)
def test_no_process_is_left_to_be_had(driver: DriverSource, monkeypatch: pytest.MonkeyPatch) -> None:
    reading_when(driver, all_well)
    real = os.posix_spawn

    def refused(*_: object, **__: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refused)
    os.kill(the_driver_pid(os.getpid()), signal.SIGKILL)
    reading = reading_when(driver, lambda r: r.notes and "could be started" in r.notes[0])
    assert "no process could be started to ask the driver (Resource temporarily unavailable)" in reading.notes[0]
    monkeypatch.setattr(os, "posix_spawn", real)
    reading_when(driver, all_well)


@pytest.mark.slow(
    "a process each; test_a_crash_is_said_with_the_time_of_the_next_try_and_survived has one that is replaced"
)
@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff", b"\x04\0\0\0[nul", b"\x02\0\0\0{}", b"\x02\0\0\0\xff\xff"])
def test_one_whose_memory_is_damaged_is_replaced(
    driver: DriverSource, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    reading_when(driver, all_well)
    sound = driver_child.PROGRAM
    monkeypatch.setattr(
        driver_child, "PROGRAM", f"import socket, time\nsocket.socket(fileno=3).send({said!r}); time.sleep(600)"
    )
    os.kill(the_driver_pid(os.getpid()), signal.SIGKILL)
    reading = reading_when(driver, lambda r: r.notes and "cannot be read" in r.notes[0])
    assert len(reading.gpus) == 8
    monkeypatch.setattr(driver_child, "PROGRAM", sound)
    reading_when(driver, all_well)
    assert len(driver_pids(os.getpid())) == 1


# ---- the programs ----


class Monitor:
    """llmtop in a process of its own, over the stand-in."""

    def __init__(self, scenario: Scenario, directory: Path, *arguments: str, **more: Any) -> None:
        assert scenario.path is not None
        env = environment(build(), scenario.path, **own_environment(LLMTOP_DIR=str(directory)))
        self.process = subprocess.Popen(
            [*LLMTOP, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )

    def line_when(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first snapshot of which something holds."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + 240
        for line in self.process.stdout:
            snapshot: dict[str, Any] = json.loads(line)
            if holds(snapshot):
                return snapshot
            assert time.monotonic() < deadline, snapshot
        raise AssertionError("the stream ended")


@pytest.fixture
def monitor(scenario: Scenario, runtime_dir: Path) -> Iterator[Callable[..., Monitor]]:
    """Starts monitors and ends them."""
    started: list[Monitor] = []

    def start(*arguments: str, **more: Any) -> Monitor:
        started.append(Monitor(scenario, runtime_dir, *arguments, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=240)


@pytest.fixture
def training(runtime_dir: Path) -> Iterator[int]:
    """The pid of a training that steps."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.toy_training", "--tokens", "100", "--step-ms", "20"],
        env=own_environment(LLMTOP_DIR=str(runtime_dir), RANK="0", WORLD_SIZE="1"),
        stdout=subprocess.DEVNULL,
    )
    yield child.pid
    child.kill()
    child.wait(100)


def has_values(snapshot: dict[str, Any]) -> bool:
    return len(snapshot["gpus"]) == 8 and all(gpu["power_watts"] is not None for gpu in snapshot["gpus"])


@pytest.mark.slow(
    "a monitor of its own; test_a_crash_is_said_with_the_time_of_the_next_try_and_survived finds the same fault"
)
def test_the_stream_goes_on_with_trainings_and_host(
    scenario: Scenario, monitor: Callable[..., Monitor], training: int
) -> None:
    stream = monitor("--json", "-i", "0.2")
    before = stream.line_when(lambda s: has_values(s) and s["ranks"])
    scenario.crash(CALL).write()
    crashed = stream.line_when(lambda s: any(CRASHED in note for note in s["host"]["notes"]))
    assert all(gpu["util_pct"] is None and CRASHED in gpu["error"] for gpu in crashed["gpus"])
    assert len(crashed["gpus"]) == 8
    assert crashed["host"]["cpu_pct"] is not None
    after = stream.line_when(lambda s: s["ranks"] and s["ranks"][0]["step"] > before["ranks"][0]["step"] + 20)
    assert (after["ranks"][0]["pid"], after["ranks"][0]["state"]) == (training, "running")
    scenario.mend(CALL).write()
    stream.line_when(has_values)
    stream.process.terminate()
    _, err = stream.process.communicate(timeout=240)
    assert (stream.process.returncode, err) == (0, "")


@pytest.mark.slow("a host or a driver's process of its own")
def test_a_recording_goes_on(scenario: Scenario, monitor: Callable[..., Monitor], tmp_path: Path) -> None:
    path = tmp_path / "run.llmtop.gz"
    recording = monitor("record", str(path), "-i", "0.2")
    first = the_driver_pid(recording.process.pid)
    wait_for(lambda: path.exists() and path.stat().st_size > 0)
    scenario.crash(CALL).write()
    wait_for(lambda: gone(first))
    scenario.mend(CALL).write()  # now: each further crash doubles the time until the next start
    wait_for(lambda: driver_pids(recording.process.pid))
    time.sleep(1.0)  # so that something comes after it
    recording.process.send_signal(signal.SIGINT)
    _, err = recording.process.communicate(timeout=240)
    assert recording.process.returncode == 0, err
    reader = Reader(path)
    snapshots = list(reader.snapshots())
    reader.close()
    assert any(CRASHED in note for _, snapshot in snapshots for note in snapshot.host.notes)


@pytest.mark.slow(
    "a screen of its own; test_a_crash_is_said_with_the_time_of_the_next_try_and_survived finds the same fault"
)
def test_the_screen_says_it_and_goes_on(scenario: Scenario, runtime_dir: Path, training: int) -> None:
    assert scenario.path is not None
    env = environment(build(), scenario.path, **own_environment(LLMTOP_DIR=str(runtime_dir)))
    with Terminal([*LLMTOP, "-i", "0.2"], size=(160, 50), **env) as terminal:
        terminal.shows("640W 91%")
        terminal.shows("forward")
        scenario.crash(CALL).write()
        terminal.shows("the driver's library crashed")  # where a note comes first, by the alert alone
        assert "forward" in terminal.text()
        scenario.mend(CALL).write()
        terminal.shows("640W 91%", 60)  # it is asked again after 1 s, 2 s, 4 s, …
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("one signal stands for all; each starts a monitor", kept=("2-well",))
@pytest.mark.parametrize("hangs", [False, True], ids=["well", "inside a call that hangs"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_it_dies_with_the_monitor_however_that_dies(
    scenario: Scenario, monitor: Callable[..., Monitor], number: signal.Signals, hangs: bool
) -> None:
    stream = monitor("--json", "-i", "0.2")
    stream.line_when(has_values)
    pid = the_driver_pid(stream.process.pid)
    if hangs:
        scenario.hang(CALL).write()
        stream.line_when(lambda s: any(gpu["error"] for gpu in s["gpus"]))
    stream.process.send_signal(number)
    stream.process.communicate(timeout=240)
    wait_for(lambda: gone(pid), what="the end of the process that asks the driver")


@pytest.mark.slow("a host or a driver's process of its own")
def test_it_holds_no_terminal_no_socket_and_no_file_of_the_monitors(
    scenario: Scenario, runtime_dir: Path, tmp_path: Path, training: int
) -> None:
    assert scenario.path is not None
    env = environment(build(), scenario.path, **own_environment(LLMTOP_DIR=str(runtime_dir)))
    command = [*LLMTOP, "-i", "0.2", "--record", str(tmp_path / "run.gz")]
    shell = ["sh", "-c", 'exec 7>"$0" "$@"', str(tmp_path / "inherited"), *command]
    with Terminal(shell, size=(160, 50), **env) as terminal:
        terminal.shows("640W 91%")
        terminal.shows("forward")
        pid = the_driver_pid(terminal.process.pid)
        held = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
        kinds = sorted(name.partition(":")[0] for name in held if name != "/dev/null")
        # Its channel, the bell of its own threads, and what their alarms are set by (an eventfd).
        assert set(kinds) <= {"anon_inode", "pipe", "socket"}, held
        assert kinds.count("socket") == kinds.count("pipe") == 1, held
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert fields[4] == "0", "it has a controlling terminal"
        assert os.getsid(pid) == pid
        terminal.keys("\x03")
        assert terminal.ends() in (0, 130)
        wait_for(lambda: gone(pid))


def test_it_loads_no_more_than_it_must(driver: DriverSource) -> None:
    reading_when(driver, all_well)
    maps = Path(f"/proc/{the_driver_pid(os.getpid())}/maps").read_text()
    assert "libnvidia-ml" in maps
    assert not [name for name in ("msgspec", "psutil", "numpy", "nvtx", "_decimal") if name in maps]


def test_it_finds_its_own_modules_whatever_lies_in_the_current_folder(
    scenario: Scenario, monitor: Callable[..., Monitor], tmp_path: Path
) -> None:
    for name in ("collectors", "llmtop", "json", "socket", "pynvml", "select"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the user')")
    root = str(Path(__file__).resolve().parents[3])
    code = f"import sys; sys.path[0] = {root!r}; from llmtop.__main__ import main; main(['--json', '-i', '0.2'])"
    assert scenario.path is not None
    stream = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(build(), scenario.path), stdout=subprocess.PIPE
    )
    try:
        assert stream.stdout is not None
        assert any(has_values(json.loads(stream.stdout.readline())) for _ in range(1000))
    finally:
        stream.kill()
        stream.communicate(timeout=240)


def test_it_ignores_what_a_terminal_sends(driver: DriverSource) -> None:
    reading_when(driver, all_well)
    pid = the_driver_pid(os.getpid())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGWINCH):
        os.kill(pid, number)
    before = driver.latest().gpus[0].sampled_at
    reading = reading_when(driver, lambda r: all_well(r) and r.gpus[0].sampled_at != before)
    assert reading.notes == ()
    assert the_driver_pid(os.getpid()) == pid

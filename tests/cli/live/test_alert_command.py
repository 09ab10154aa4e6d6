"""The command that is run for each new alert."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.cli.live import alert_command
from llmtop.cli.live.alert_command import AlertCommand
from llmtop.model.snapshot import Alert, Host, Snapshot
from llmtop.system import procfs
from tests.support import nvml_stub
from tests.support.processes import environment, wait_for


def snapshot(*alerts: Alert) -> Snapshot:
    return Snapshot(time=1.0, host=Host(name="node"), alerts=alerts)


def alert(gpu: str = "GPU-3") -> Alert:
    return Alert(id="low_power_full_util", severity="critical", gpu=gpu, since=1.0, summary="GPU 3 spins.")


def told(path: Path) -> list[str]:
    return [json.loads(line)["gpu"] for line in path.read_text().splitlines()] if path.exists() else []


def test_each_alert_is_told_once_for_as_long_as_it_is_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tap = AlertCommand(f"cat >> '{out}'")
    for _ in range(3):
        tap(snapshot(alert()))
    tap(snapshot(alert(), alert("GPU-5")))
    wait_for(lambda: told(out) == ["GPU-3", "GPU-5"])
    tap(snapshot())
    tap(snapshot(alert()))
    wait_for(lambda: told(out) == ["GPU-3", "GPU-5", "GPU-3"], what="raised anew, told anew")
    assert tap(snapshot()).host.notes == ()
    tap.close()


def test_an_alert_whose_training_comes_or_goes_is_the_same_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tap = AlertCommand(f"cat >> '{out}'")
    for pid in (None, 7, None, 7):
        tap(snapshot(replace(alert(), pid=pid)))
    tap(snapshot(replace(alert(), pid=7), replace(alert(), pid=8)))
    tap(snapshot(replace(alert(), pid=8)))
    tap(snapshot(replace(alert(), pid=8), alert("GPU-5")))
    wait_for(lambda: told(out) == ["GPU-3", "GPU-3", "GPU-5"], what="pid 7's, pid 8's and the other GPU's")
    tap.close()


@pytest.mark.parametrize(("command", "said"), [("exit 7", "exit code 7"), ("kill -9 $$", "signal 9")])
def test_a_command_that_fails_is_a_note_until_one_succeeds(tmp_path: Path, command: str, said: str) -> None:
    mended = tmp_path / "mended"
    tap = AlertCommand(f"test -e '{mended}' || {{ {command}; }}")
    tap(snapshot(alert()))
    note = wait_for(lambda: tap(snapshot(alert())).host.notes)
    assert said in note[0]
    mended.touch()
    tap(snapshot(alert("GPU-5")))
    wait_for(lambda: not tap(snapshot()).host.notes)
    tap.close()


def test_a_command_that_never_ends_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"

    class AfterPids(subprocess.Popen[bytes]):
        """The time of a command begins when it has written its file."""

        def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[bytes, bytes]:
            wait_for(lambda: pids.exists() and pids.read_text(), what="the command to start another")
            return super().communicate(input, timeout=timeout)

    monkeypatch.setattr(alert_command.subprocess, "Popen", AfterPids)
    monkeypatch.setattr(alert_command, "TIMEOUT_SECONDS", 0.5)
    tap = AlertCommand(f"sleep 300 & echo $! > '{pids}'; wait")
    tap(snapshot(alert()))
    assert "was killed" in wait_for(lambda: tap(snapshot(alert())).host.notes)[0]
    wait_for(lambda: not Path(f"/proc/{pids.read_text().strip()}").exists())
    tap.close()


def test_closing_does_not_wait_for_the_command(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    tap = AlertCommand(f"echo $$ > '{place}'; exec sleep 300")
    tap(snapshot(alert()))
    pid = wait_for(lambda: place.exists() and int(place.read_text() or 0))
    assert procfs.is_alive(pid)
    tap.close()
    wait_for(lambda: not procfs.is_alive(pid))


def test_too_many_alerts_for_a_slow_command_are_counted(tmp_path: Path) -> None:
    tap = AlertCommand("sleep 300")
    said = tap(snapshot(*(alert(f"GPU-{place}") for place in range(alert_command.WAITING + 20)))).host.notes
    assert "skipped" in said[0]
    tap.close()


@pytest.mark.slow("a whole monitor; test_each_alert_is_told_once_for_as_long_as_it_is_up has the same alerts")
def test_the_monitor_tells_of_a_gpu_that_spins(tmp_path: Path, runtime_dir: Path) -> None:
    scenario = nvml_stub.Scenario.eight_gpus()
    scenario.set(3, util=100, power_watts=120, sm_active=0.8, dram_active=0, tensor_active=0, mem_util=0)
    env = nvml_stub.environment(
        nvml_stub.build(), scenario.write(tmp_path / "scenario"), **environment(LLMTOP_DIR=str(runtime_dir))
    )
    out = tmp_path / "out"
    monitor = subprocess.Popen(
        [sys.executable, "-m", "llmtop", "--json", "-i", "0.5", "--on-alert", f"cat >> '{out}'"],
        env=env,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: told(out), 30)
        one = json.loads(out.read_text().splitlines()[0])
        assert one["id"] == "low_power_full_util"
        assert one["evidence"]["power_watts"] == pytest.approx(120)
        time.sleep(1.5)
        assert len(told(out)) == 1
    finally:
        monitor.terminate()
        assert monitor.wait(240) == 0

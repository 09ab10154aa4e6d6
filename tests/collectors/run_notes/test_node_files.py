"""What monitors write beside the runs of real trainings, and what readers make of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.cli.live import watcher
from llmtop.runs import folder, records, store
from llmtop.runs.node_notes import node_files, read_notes
from llmtop.runs.run_file import RunFile
from tests.support import machine
from tests.support.nvml_stub import SCENARIO_VARIABLE, Scenario, build, gpu_uuid
from tests.support.nvml_stub import environment as stub_environment
from tests.support.processes import busy_limit, environment, wait_for
from tests.support.snapshots import snapshot

LLMTOP = [sys.executable, "-m", "llmtop"]
WAITS_FOR_DATA = """
import sys, time, llmtop
for number in range(int(sys.argv[1])):
    with llmtop.step(tokens=10):
        with llmtop.phase("data"):
            time.sleep(0.06)
        with llmtop.phase("forward"):
            time.sleep(0.04)
    llmtop.log(loss=1 / (number + 1))
"""


PATIENT_MONITOR = """
import sys
from collectors.run_notes import node_writer
from llmtop.__main__ import main
node_writer.EXIT_SECONDS = 60.0
main(sys.argv[1:])
"""
"""A monitor that writes all at its end, however long that takes a busy machine."""


class Node:
    """A node with one training and any number of monitors, all over one folder of runs."""

    def __init__(self, directory: Path, runs: Path, **extra: str) -> None:
        self.runs = runs
        self.env = environment(LLMTOP_RUNS=str(runs), LLMTOP_RUN_LOG="1", LLMTOP_DIR=str(directory), **extra)
        self.started: list[subprocess.Popen[str]] = []

    def train(self, steps: int = 100_000, script: str = WAITS_FOR_DATA) -> subprocess.Popen[str]:
        """Start a training and wait until its run is there."""
        known = set(self.runs.glob("*/*.run"))
        process = self.start([sys.executable, "-c", script, str(steps)])
        wait_for(lambda: set(self.runs.glob("*/*.run")) - known)
        return process

    def watch(self, *words: str) -> subprocess.Popen[str]:
        """Start a monitor."""
        return self.start([*LLMTOP, *(words or ("--json", "-i", "0.5"))])

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def stop(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> None:
        process.send_signal(number)
        process.communicate(timeout=240)

    def llmtop(self, *words: str, code: int = 0) -> str:
        """Run a command of llmtop to its end, and return its standard output."""
        done = subprocess.run(
            [*LLMTOP, *words], env=self.env, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def report(self) -> dict[str, Any]:
        """What `llmtop runs show --json` prints."""
        found: dict[str, Any] = json.loads(self.llmtop("runs", "show", "--json"))
        return found

    def files(self) -> list[Path]:
        """The files of monitors."""
        return node_files(self.runs.iterdir()) if self.runs.is_dir() else []

    def written(self, path: Path) -> list[records.Record]:
        return list(RunFile(path).records())

    def alerts(self) -> list[records.AlertSeen]:
        found = [record for path in self.files() for record in self.written(path)]
        return [record for record in found if isinstance(record, records.AlertSeen)]


@pytest.fixture
def node(runtime_dir: Path, tmp_path: Path) -> Iterator[Node]:
    made = Node(runtime_dir, tmp_path / "runs")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=240)


def not_of_stalls(alerts: Iterable[str]) -> list[str]:
    """Return the ids without those that are true of any training on a busy machine."""
    return [one for one in alerts if one not in ("rare_steps", "slower")]


def test_a_watcher_logs_each_note_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = watcher.NoteLog()
    for second, notes in enumerate((("no driver",), ("no driver", "late by 30 s"), ("late by 31 s",), ())):
        known = snapshot(1.7e9 + second)
        log(replace(known, host=replace(known.host, notes=notes)))
    assert [line[20:] for line in capsys.readouterr().err.splitlines()] == ["no driver", "late by 30 s"]


def test_alerts_are_written_with_times_and_evidence(node: Node) -> None:
    node.train()
    monitor = node.start([sys.executable, "-c", PATIENT_MONITOR, "--json", "-i", "0.5"])
    (begun, *_) = wait_for(node.alerts)
    assert (begun.id, begun.severity, begun.ended) == ("input_bound", "warning", False)
    assert "waits for data" in begun.summary
    assert begun.since is not None
    assert begun.since <= begun.at + 1e-6  # both are sums of floats, which are 0.24 µs apart at this size
    node.stop(monitor)
    (path,) = node.files()
    assert path.stat().st_mode & 0o777 == 0o600
    watched = [record for record in node.written(path) if isinstance(record, records.Watched)]
    assert len(watched) >= 2
    assert watched[0].pid == monitor.pid
    report = node.report()
    assert not_of_stalls(one["id"] for one in report["alerts"] if not one["recomputed"]) == ["input_bound"]
    assert report["watched_seconds"] > 0


@pytest.mark.slow("15 s of steps; test_alerts_are_written_with_times_and_evidence shows a run")
def test_nobody_watches_and_alerts_are_recomputed_from_the_steps(node: Node) -> None:
    training = node.train(150)
    training.communicate(timeout=240)
    assert not node.files()
    report = node.report()
    assert not_of_stalls(one["id"] for one in report["alerts"]) == ["input_bound"]
    assert all(one["recomputed"] for one in report["alerts"])
    assert report["watched_seconds"] == 0
    shown = node.llmtop("runs", "show")
    assert "input_bound*" in shown
    assert "No monitor watched" in shown
    lines = [json.loads(line) for line in node.llmtop("runs", "open", "--json").splitlines()]
    assert lines[-1]["ranks"][0]["state"] == "gone"
    steps = [step["index"] for line in lines for step in line["ranks"][0]["new_steps"]]
    assert steps == list(range(150))
    notes = {note for line in lines for note in line["host"]["notes"]}
    assert any("recomputed" in note for note in notes)
    assert any(alert["id"] == "input_bound" for line in lines for alert in line["alerts"])


@pytest.mark.slow("waits for turns; test_alerts_are_written_with_times_and_evidence has one monitor")
def test_one_of_three_monitors_writes_and_another_takes_over_when_it_is_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine it takes longer until another writes.
    monkeypatch.setattr("llmtop.runs.node_notes.TURN_SECONDS", 240.0)
    node.train()
    first = node.watch()
    wait_for(node.alerts)
    others = [node.watch(), node.watch("record", "--daemon", "--foreground", "--interval", "0.5")]
    time.sleep(7)  # longer than a monitor waits before it tries to get the turn
    assert len(node.files()) == 1
    node.stop(first, signal.SIGKILL)
    wait_for(lambda: len(node.files()) == 2 and len(node.alerts()) > 1)
    (_, second) = node.files()
    writers = {record.pid for record in node.written(second) if isinstance(record, records.Watched)}
    assert writers <= {other.pid for other in others}
    for other in others:
        node.stop(other)
    (run,) = store.list_runs(node.runs)
    notes = read_notes(run)
    # Both saw it: it is one, unless a training that waits for a core needed no data for a while.
    ended = sum(alert.ended for alert in node.alerts() if alert.id == "input_bound")
    assert 1 <= sum(alert.id == "input_bound" for alert in notes.alerts) <= 1 + ended
    assert set(not_of_stalls(alert.id for alert in notes.alerts)) == {"input_bound"}
    assert len(notes.watched) == 1


@pytest.mark.slow("three monitors; tests/runs kills trainings, which write the same form")
def test_a_monitor_killed_while_it_appends_leaves_a_file_that_can_be_read(node: Node) -> None:
    node.train()
    for number in range(3):
        monitor = node.watch("--json", "-i", "0.1")
        # Killed before its first bytes it leaves an empty file, which is nothing to read.
        wait_for(lambda count=number: len([one for one in node.files() if one.stat().st_size]) > count)  # type: ignore[misc]  # bound to this turn
        time.sleep(0.1 * number)
        node.stop(monitor, signal.SIGKILL)
    for path in node.files():
        file = RunFile(path)
        assert file.unreadable_records == 0
        assert file.members
    alerts = node.report()["alerts"]
    assert not_of_stalls(one["id"] for one in alerts if not one["recomputed"]) == ["input_bound"]


@pytest.mark.slow("a monitor of its own; test_alerts_are_written_with_times_and_evidence finds the writer")
def test_without_a_training_nothing_is_written(node: Node, runtime_dir: Path) -> None:
    node.llmtop("record", "--daemon", "--foreground", "--seconds", "2", "--interval", "0.5")
    assert not node.runs.exists()
    assert not (runtime_dir / "runs.lock").exists()


@pytest.mark.slow("the same with a training that keeps none")
def test_a_training_that_keeps_no_run_gets_nothing_from_a_monitor(node: Node) -> None:
    node.env["LLMTOP_RUN_LOG"] = "0"
    node.start([sys.executable, "-c", WAITS_FOR_DATA, "100000"])
    node.llmtop("record", "--daemon", "--foreground", "--seconds", "4", "--interval", "0.5")
    assert not node.runs.exists()


@pytest.mark.slow("five commands; test_alerts_are_written_with_times_and_evidence has one monitor")
def test_a_watcher_in_the_background_is_started_and_stopped(node: Node) -> None:
    node.train()
    node.llmtop("record", "--daemon", "--interval", "0.5")
    try:
        node.llmtop("record", "--daemon")  # it runs already
        node.llmtop("record", "--daemon", "--foreground", code=3)
        wait_for(node.alerts)
    finally:
        node.llmtop("record", "--daemon", "--stop")
    node.llmtop("record", "--daemon", "--stop")
    (path,) = node.files()
    assert [record.monitor for record in node.written(path) if isinstance(record, records.Watched)] == [
        "record"
    ] * 2
    node.llmtop("record", "--stop", code=2)
    node.llmtop("record", "--daemon", "FILE", code=2)


@pytest.mark.slow(
    "a stand-in driver that is compiled; test_alerts_are_written_with_times_and_evidence writes alerts"
)
def test_gpu_minutes_are_of_the_gpus_that_trainings_use(runtime_dir: Path, tmp_path: Path) -> None:
    scenario = Scenario(count=2).set(0, util=73, power_watts=410)
    node = Node(runtime_dir, tmp_path / "runs")
    training = node.train()
    try:
        scenario.process(0, training.pid, 5 << 30).write(tmp_path / "scenario")
        node.env = stub_environment(build(), tmp_path / "scenario", **node.env)
        assert SCENARIO_VARIABLE in node.env
        node.llmtop("record", "--daemon", "--foreground", "--seconds", "6", "--interval", "0.5")
        (path,) = node.files()
        minutes = [record for record in node.written(path) if isinstance(record, records.GpuMinute)]
        assert [minute.uuid for minute in minutes] == [gpu_uuid(0)]
        (minute,) = minutes
        assert minute.signals["util_pct"] == (73, 73, 73)
        assert minute.pids == [] or minute.pids == [training.pid]
        assert minute.samples >= 2
        (gpu,) = node.report()["gpus"]
        assert gpu["signals"]["power_watts"] == pytest.approx([410, 410, 410])
        assert "73 % (73 to 73)" in node.llmtop("runs", "show")
    finally:
        node.stop(training, signal.SIGKILL)


@pytest.mark.slow("a tmpfs that fills; tests/runs fills one for trainings")
def test_a_full_disk_is_noted_on_the_screen_and_what_was_written_stays(runtime_dir: Path, tmp_path: Path) -> None:
    if os.geteuid():
        machine.cannot("mount a tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True, timeout=240)
    node = Node(runtime_dir, disk / "runs")
    try:
        node.train()
        with (disk / "filler").open("wb", buffering=0) as filler:
            while filler_write(filler):
                pass
        lines = Lines(node, "--json", "-i", "0.5")
        lines.when(lambda line: any("disk takes no GPU signals" in note for note in line["host"]["notes"]))
        (disk / "filler").unlink()
        lines.when(lambda line: not any("disk takes no" in note for note in line["host"]["notes"]))
        lines.close()
        (path,) = node.files()
        assert not_of_stalls(one.id for one in node.alerts())[:1] == ["input_bound"]
        assert RunFile(path).damaged_bytes == 0
    finally:
        for process in node.started:
            process.kill()
            process.communicate(timeout=240)
        subprocess.run(["umount", "-l", str(disk)], check=False, timeout=240)


def filler_write(filler: Any) -> bool:
    """Write a page; returns whether the disk took it."""
    try:
        return bool(filler.write(b"x" * 4096))
    except OSError:
        return False


class Lines:
    """The snapshots of a monitor."""

    def __init__(self, node: Node, *words: str) -> None:
        self.process = subprocess.Popen([*LLMTOP, *words], env=node.env, stdout=subprocess.PIPE, text=True)
        node.started.append(self.process)

    def when(self, holds: Any) -> dict[str, Any]:
        """The next snapshot of which something holds."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + busy_limit(60)
        for text in self.process.stdout:
            line: dict[str, Any] = json.loads(text)
            if holds(line):
                return line
            assert time.monotonic() < deadline, line["host"]["notes"]
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=240)


@pytest.mark.slow("torch; test_alerts_are_written_with_times_and_evidence has one process")
def test_workers_of_a_loader_write_no_run_of_their_own(node: Node) -> None:
    pytest.importorskip("torch")
    script = """
import time, torch
import tests.support.light_optimizer
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): time.sleep(0.01); return torch.tensor([float(at)])
model = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(model.parameters(), 1e-6)
import llmtop
for batch in DataLoader(Numbers(), batch_size=2, num_workers=2):
    with llmtop.step():
        model(batch).sum().backward(); optimizer.step()
time.sleep(1.5)
"""
    node.train(script=script).communicate(timeout=240)
    names = [parsed for path in node.runs.glob("*/*") if (parsed := folder.parsed_name(path.name)) is not None]
    assert len({name for name, _ in names}) == 1

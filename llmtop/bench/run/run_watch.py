"""Watching one run: its steps, its GPUs, and the files that are written meanwhile."""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectors.hub import Hub, Sources, live_hub, live_sources, next_round
from collectors.record_stage import RecordStage
from collectors.trainings.source import StepsSource
from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.gpu_csv import GpuCsv
from llmtop.bench.run.run_steps import RunSteps
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Rank, Snapshot

RECORDING_FILE, GPU_FILE = "recording.llmtop.gz", "gpu.csv"
INTERVAL_SECONDS = 1.0
DISCOVERY_SECONDS = 0.1
"""Search interval until the first training has attached: a run of one second must not be missed."""
SETTLING_SECONDS = 3.0
"""Time after the first training attached in which the other ranks attach; later, looking costs less."""
END_SECONDS = 3.0
"""How long the sources have to notice that it has ended."""
_MOST_SNAPSHOTS = 3600


class RunWatch:
    """Makes a snapshot a second of this machine, keeps those of the window, and writes recording and gpu.csv."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, Any] | None = None,
        *,
        commands: int = 1,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """Create the files and start the sources.

        Args:
            folder: of the run.
            environment: facts for the header of the recording.
            commands: how many commands run at the same time.
            interval: seconds between snapshots.

        Raises:
            LlmtopError: the files cannot be written.
        """
        self.all_steps = tuple(RunSteps() for _ in range(commands))
        """Steps of each command."""
        self.steps = self.all_steps[0]
        self.interval = interval
        self.snapshots: deque[Snapshot] = deque(maxlen=_MOST_SNAPSHOTS)
        self.error: LlmtopError | None = None
        """Why the files are cut short."""
        self._csv = GpuCsv(folder / GPU_FILE)
        self._recorder = RecordStage(
            folder / RECORDING_FILE, host=platform.node(), overwrite=True, environment=environment
        )
        self._trainings: StepsSource | None = None
        self._settled_at: float | None = None
        self._hub: Hub = live_hub(interval=interval, stages=(self._recorder,), make_sources=self._sources)
        self._due = time.monotonic()

    def _sources(self, interval: float) -> Sources:
        sources = live_sources(interval, engines=False, sample_loaders=False)  # samples fall into some windows
        if isinstance(sources.ranks, StepsSource):
            self._trainings = sources.ranks
            self._trainings.set_discovery_interval(DISCOVERY_SECONDS)
        return sources

    def poll(self, *commands: CommandProcess) -> bool:
        """Make a snapshot if one is due; returns whether one was made. For a loop that comes by often."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._take_snapshot(commands)
        self._due = next_round(self._due, time.monotonic(), self.interval)
        return True

    def finish(self, *commands: CommandProcess) -> None:
        """Take in the last steps of commands that have ended."""
        until = time.monotonic() + END_SECONDS
        while True:
            ranks = self._take_snapshot(commands)
            if all(rank.state == "gone" for rank in ranks) or time.monotonic() > until:
                return
            time.sleep(DISCOVERY_SECONDS)

    def close(self) -> None:
        """Close files and sources."""
        self._hub.close()
        self._recorder.close()
        self._csv.close()
        self.error = self.error or self._recorder.error

    def _take_snapshot(self, commands: Sequence[CommandProcess]) -> list[Rank]:
        snapshot = self._hub.poll()
        ranks: list[Rank] = []
        for command, steps in zip(commands, self.all_steps, strict=True):
            owned = [rank for rank in snapshot.ranks if command.owns(rank.pid)]
            steps.add(owned)
            ranks += owned
        self.snapshots.append(snapshot)
        try:
            if self.error is None:
                self._csv.add(snapshot)
        except LlmtopError as error:
            self.error = error
        self.error = self.error or self._recorder.error
        self._settle()
        return ranks

    def _settle(self) -> None:
        """Search for trainings less often once those of this run are known."""
        if self._trainings is None or not all(steps.has_attached for steps in self.all_steps):
            return
        now = time.monotonic()
        if self._settled_at is None:
            self._settled_at = now + SETTLING_SECONDS
        elif now > self._settled_at:
            self._trainings.set_discovery_interval(INTERVAL_SECONDS)
            self._trainings = None

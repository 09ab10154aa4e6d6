"""One run of each command at the same time: they take short turns, and one is stopped while another runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from llmtop.bench.model.results import BenchRun, BenchSettings
from llmtop.bench.run import run_result
from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.interrupt import Interrupts, collect_interrupts
from llmtop.bench.run.kept_steps import KeptSteps
from llmtop.bench.run.memory_layout import HASH_SEED
from llmtop.bench.run.run_end import RunEnd
from llmtop.bench.run.run_once import (
    TICK_SECONDS,
    RunRequest,
    StepTimeout,
    base_run,
    end_reason,
    make_folder,
    start,
    write_run,
)
from llmtop.bench.run.run_steps import RunSteps
from llmtop.bench.run.run_watch import RunWatch
from llmtop.bench.run.turns import TurnTaker, settling_seconds, turn_seconds
from llmtop.format import duration

_WARM_UP_INTERVAL_SECONDS = 0.2
"""Between snapshots until the turns begin: a command that has made its warm-up is stopped soon."""
_INTERVAL_SECONDS = 0.5
"""Between snapshots while turns are taken."""
_GROUPS_SECONDS = 1.0
"""Between searches for new process groups."""
_LEAST_WARM_UP = 3
"""Steps after which a step time is known."""


@dataclass
class _Side:
    """One of the commands."""

    request: RunRequest
    command: CommandProcess
    steps: RunSteps
    end: RunEnd
    timeout: StepTimeout
    is_held: bool = False
    by_window: bool = False

    @property
    def is_warm(self) -> bool:
        """Return True if the command has made its warm-up."""
        return self.steps.step_count >= max(self.request.settings.warmup, _LEAST_WARM_UP)

    @property
    def name(self) -> str:
        return f"run {self.request.number}" + (f" ({self.request.label})" if self.request.label else "")


def run_together(requests: Sequence[RunRequest]) -> list[BenchRun]:
    """Run commands at the same time in turns, and write the files of each run into its folder.

    The recording and gpu.csv show all of them, and are in the folder of the first. As in
    `llmtop.bench.run.run_once.run_once`, a command that crashes or makes too few steps is no error here; the other
    commands are ended then. All start with the same layout of memory (`llmtop.bench.run.memory_layout`).

    Args:
        requests: one for each command, with the same settings; the first one has the first turn of each round.

    Raises:
        UnusableInput: there is no such command, or it cannot be executed.
        NotPossibleHere: the folder cannot be written.
    """
    for request in requests:
        make_folder(request.folder)
    with collect_interrupts() as interrupts:
        runs = _Together(requests, interrupts).run()
    return [write_run(request, run) for request, run in zip(requests, runs, strict=True)]


class _Together:
    """Commands that run in turns, from their start to their end."""

    def __init__(self, requests: Sequence[RunRequest], interrupts: Interrupts) -> None:
        self._requests, self._interrupts = requests, interrupts
        self._settings: BenchSettings = requests[0].settings
        self._say = _without_repeats(requests[0].say)
        self._turn = 0.0
        """Seconds of a turn; 0 before the turns begin."""
        self._groups_at = 0.0
        self._cause = ""
        """Why the runs ended early."""

    def run(self) -> list[BenchRun]:
        first = self._requests[0]
        watch = RunWatch(
            first.folder, first.surroundings, commands=len(self._requests), interval=_WARM_UP_INTERVAL_SECONDS
        )
        sides: list[_Side] = []
        try:
            try:
                for request, steps in zip(self._requests, watch.all_steps, strict=True):
                    command = start(_with_hash_seed(request, first.number), fixed_layout=True)
                    end = RunEnd(command, self._interrupts, self._say, kill=self._settings.kill)
                    sides.append(
                        _Side(request, command, steps, end, StepTimeout(self._settings.step_timeout_seconds))
                    )
                taker = TurnTaker([side.command for side in sides])
                try:
                    self._run_until_end(sides, watch, taker)
                finally:
                    taker.close()
                if not any(side.end.is_abandoned for side in sides):
                    watch.finish(*(side.command for side in sides))
            finally:
                for side in sides:
                    if not side.command.has_ended() and not side.end.is_abandoned:
                        side.command.interrupt()
        finally:
            watch.close()
        self._judge(sides, taker)
        return [self._result(side, sides, watch) for side in sides]

    def _run_until_end(self, sides: Sequence[_Side], watch: RunWatch, taker: TurnTaker) -> None:
        """Watch until all commands have ended, or one is left running."""
        is_ending = False
        commands = [side.command for side in sides]
        while not all(command.has_ended() for command in commands):
            is_new = watch.poll(*commands)
            if not is_ending:
                self._update(sides, watch, taker, is_new=is_new)
                is_ending = self._is_over(sides, watch, taker)
                if is_ending:
                    for side in sides:
                        if not self._interrupts and not side.command.has_ended():
                            side.end.request_end()
                    taker.close()  # a stopped process gets SIGINT when it is continued
            if sum(side.end.poll() for side in sides if not side.command.has_ended()):
                return
            time.sleep(TICK_SECONDS)

    def _update(self, sides: Sequence[_Side], watch: RunWatch, taker: TurnTaker, *, is_new: bool) -> None:
        """Hold who has made the warm-up, begin the turns, and judge the steps that have come."""
        now = time.monotonic()
        if now - self._groups_at > _GROUPS_SECONDS:
            self._groups_at = now
            taker.update_groups()
        if not is_new:
            return
        if self._turn:
            self._judge(sides, taker)
            return
        for number, side in enumerate(sides):
            if side.is_warm and not side.is_held and not all(one.is_warm for one in sides):
                taker.update_groups()
                taker.hold(number)
                side.is_held = True
        if all(side.is_warm for side in sides):
            self._begin(sides, taker)
            watch.interval = _INTERVAL_SECONDS

    def _begin(self, sides: Sequence[_Side], taker: TurnTaker) -> None:
        has_gpu = any(rank.rank.gpu_uuid for side in sides for rank in side.steps.ranks)
        usual = max(median(whole.seconds for whole in side.steps.ranks[0].wholes[1:]) for side in sides)
        self._turn = self._settings.turns or turn_seconds(usual, has_gpu=has_gpu)
        for side in sides:
            side.steps.kept = KeptSteps(settling_seconds(self._turn, has_gpu=has_gpu))
            side.timeout = StepTimeout(self._settings.step_timeout_seconds)
        taker.update_groups()
        taker.begin(self._turn, range(len(sides)))
        self._say(f"turns of {duration(self._turn)}, at steps of {duration(usual)}")

    def _judge(self, sides: Sequence[_Side], taker: TurnTaker) -> None:
        taker.read()
        for side, turns in zip(sides, taker.turns, strict=True):
            side.steps.judge_turns(self._settings, turns)
        kept = [side.steps.kept for side in sides if side.steps.kept is not None]
        common = set.intersection(*(one.kept_rounds for one in kept)) if len(kept) == len(sides) else set()
        for one in kept:
            one.count_rounds(common)

    def _is_over(self, sides: Sequence[_Side], watch: RunWatch, taker: TurnTaker) -> bool:
        """Return True if the commands are to be ended, with the reason noted."""
        if self._interrupts:
            return True
        if self._turn and all(side.steps.is_whole(self._settings) for side in sides):
            for side in sides:
                side.by_window = True
            return True
        ended = next((side for side in sides if side.command.has_ended()), None)
        late = next(
            (one for one in sides if not one.is_held or self._turn if one.timeout.is_over(one.steps.step_count)),
            None,
        )
        if ended is not None:
            self._cause = f"{ended.name} ended"
        elif late is not None:
            late.end.request_end_after_timeout()
            limit = duration(self._settings.step_timeout_seconds)
            self._cause = f"{late.name}: no step ended for {limit} (--step-timeout)"
        elif taker.has_ended():
            self._cause = f"the process that takes the turns (pid {taker.pid}) was ended"
        elif taker.denied:
            self._cause = f"{sides[min(taker.denied)].name}: a process of another user cannot be stopped"
        elif watch.error is not None:
            self._cause = str(watch.error)
        return bool(self._cause)

    def _result(self, side: _Side, sides: Sequence[_Side], watch: RunWatch) -> BenchRun:
        notes = side.end.wait_for_remaining()
        if side.end.is_abandoned:
            why = "it ignored Ctrl+C" if side.end.has_timed_out else "after Ctrl+C"
            notes.append(f"left running, {why}: pid {side.command.pid}")
        ended = end_reason(side.command, self._interrupts, side.end, by_window=side.by_window)
        was_ended = side.end.is_asked and not side.by_window and not self._interrupts
        if watch.error is not None or was_ended:
            ended = "failed"
            notes = [f"interrupted, because {self._cause}", *notes]
        run = base_run(side.request, side.command, ended, notes)
        found = run_result.result_in_turns(
            run,
            self._settings,
            side.steps,
            watch,
            owns=lambda pid: any(one.command.owns(pid) for one in sides),
            turn=self._turn,
        )
        side.command.close()
        return found


def _with_hash_seed(request: RunRequest, seed: int) -> RunRequest:
    """Return the request with the same hash seed as the commands beside it have, another one in each round.

    So both sides have the same layout if they do the same, and a difference that only one layout shows is not the
    same in all rounds. A seed of the user's stays.
    """
    return replace(request, environment={HASH_SEED: str(seed), **request.environment})


def _without_repeats(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a printer that leaves out a sentence that has been printed: each command has the same to report."""
    printed: set[str] = set()

    def say_once(sentence: str) -> None:
        if sentence not in printed:
            printed.add(sentence)
            say(sentence)

    return say_once

"""Detect when a training's steps become slower or faster for good, as opposed to noise and rare long steps.

Two tests of logarithms of whole steps (a factor is a difference there), each against what this very training did:

- A Bernoulli CUSUM (Reynolds and Stoumbos, 1999; CUSUM: Page, 1954) for large changes: one up for a step above a
  level, three down for any other; a sum of eight reports a change. One long step counts no more than another,
  however long it is. So an evaluation is no change, but eight steps in a row above the level of one in six are.
- Moving medians (MOSUM over several windows: Eichinger and Kirch, 2018) for small ones: the last 2, 4, … 64 blocks
  of eight steps against the four times as many before them.

The second looks at each part of a step, too (a phase, or what is in none): where batches differ in length a step
says little, and the wait for data that has come to it much. It counts only if the step is longer with it.

Steps are not independent: other programs take the CPUs for seconds, and batches come sorted by length. A threshold
for independent noise would be passed all the time. So each test's own values of the past, which hold such
stretches, set its threshold, and theory only the least one. tests/step_history/test_step_changes.py measures how
often either is wrong, and how late.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from itertools import islice
from statistics import median

from llmtop.model.snapshot import Change, RareSteps
from llmtop.step_history.change_point import NORMAL_AFTER_SECONDS, ChangePoint
from llmtop.step_history.rare_steps import RareStepFinder
from llmtop.step_history.step_blocks import (
    MAX_PAST_VALUES,
    Block,
    Columns,
    PastValues,
    Work,
    best_split,
    level_of,
    make_block,
    median_level,
    parts_of,
    series_of,
    spread_of,
    work_of,
)
from llmtop.step_history.whole_steps import WholeStep

BLOCK_STEPS = 8
BLOCK_SECONDS = 0.5
"""Least steps and seconds of a block: a training of a thousand steps per second is evaluated no more often than
one of sixteen."""
BASE_BLOCKS = 32
"""Blocks that say what is usual now."""
SINCE_BLOCKS = 64
"""Blocks that say what steps came to since a change."""
FIRST_BLOCKS = 3
"""Blocks without which nothing is usual yet."""

RUN_STEPS = 8
RUN_SECONDS = 1.0
"""A run above the level is reported when it has both: a change from 50 to 250 ms is reported after eight steps."""
RUN_PENALTY = 3
RUN_LEAST = math.log(2.0)
RUN_LEAST_AT_FIRST = math.log(2.5)
"""The least level over the usual one, and while few blocks are known."""
RUN_MOST = math.log(4.0)
"""Bursts of the past raise the level up to here: steps five times as long are always reported within ten."""
BURST_MARGIN = 1.25

SCALES = ((2, 2.0, 2.0), (4, 1.5, 4.0), (8, 1.3, 8.0), (16, 1.15, 15.0), (32, 1.12, 20.0), (64, 1.10, 30.0))
"""Blocks in a window, the least reported factor, and the seconds that slower steps must last at least."""
BEFORE = 4
"""Number of windows before, which are compared."""
ENOUGH = 16
"""Values of a test by which its noise is known; before, the noise of shorter windows counts too."""
FEW = 2.0
"""How much more a change must be at first: three times as much as a logarithm, twice after 32 blocks."""
MOST_PARTS = 16
"""Parts of a step that are compared one by one."""
WITH_THE_STEP = 0.5
"""Share of a part's growth that the step must grow by. CUDA is asynchronous, so a wait moves between phases."""
HELD_SHARE = 0.6
"""Share of the change that was held back, that must still be there."""
LASTING_SHARE = 0.8
"""Share of the blocks on either side that must lie on theirs."""
ABRUPT_SHARE = 0.6
"""Share of the change that must lie between the blocks next to the change point: a drift has far less."""


class StepChanges:
    """Follows one training's whole steps, oldest first, without warm-up. Memory is bounded; for one thread."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset: the training begins anew."""
        self._change: Change | None = None
        self._count = 0
        self._index: int | None = None
        self._elapsed = 0.0
        self._open: list[WholeStep] = []
        self._open_seconds = 0.0
        self._blocks: deque[Block] = deque(maxlen=64 + BEFORE * 64)
        self._closed = 0
        self._usual = math.inf
        self._level = math.inf
        self._bursts: deque[float] = deque(maxlen=2 * MAX_PAST_VALUES)
        self._run: list[WholeStep] = []
        self._run_seconds = 0.0
        self._score = 0
        self._values: dict[str | None, tuple[PastValues, ...]] = {}
        self._held: tuple[ChangePoint, float] | None = None
        self._found: ChangePoint | None = None
        self._slow_since: ChangePoint | None = None
        self._reported: ChangePoint | None = None
        self._rare = RareStepFinder()

    @property
    def change(self) -> Change | None:
        """The last change, with what steps have come to since."""
        return self._change

    @property
    def rare(self) -> RareSteps | None:
        """The rare long steps that cost most; None where none cost enough to be reported."""
        return self._rare.costliest()

    @property
    def level_since(self) -> int | None:
        """Index of the first step of the present length; None before the first change."""
        return None if self._found is None else self._found.step

    def add(self, whole: WholeStep) -> bool:
        """Take the next step.

        Returns:
            Whether the steps' length was just found to have changed: steps before `level_since` are of another.
        """
        index, seconds = whole.step.index, whole.seconds
        if self._index is not None and index <= self._index:
            self.restart()
        self._index = index
        self._count += 1
        self._elapsed += seconds
        self._rare.add(whole, self._count)
        self._open.append(whole)
        self._open_seconds += seconds
        if seconds > self._level:
            self._score = min(self._score + 1, RUN_STEPS + RUN_PENALTY)
            self._run.append(whole)
            self._run_seconds += seconds
            if self._score >= RUN_STEPS and self._run_seconds >= RUN_SECONDS and self._is_run_reported():
                return True
        elif self._score:
            self._score -= RUN_PENALTY
            self._run.append(whole)
            self._run_seconds += seconds
            if self._score <= 0:
                self._end_run()
        if len(self._open) >= BLOCK_STEPS and self._open_seconds >= BLOCK_SECONDS:
            return self._close()
        return False

    def _end_run(self) -> None:
        self._score = 0
        self._run.clear()
        self._run_seconds = 0.0

    # ---- many steps in a row above the level ----

    def _is_run_reported(self) -> bool:
        run = self._run
        if len(run) > RUN_STEPS and len(run) % RUN_STEPS:
            return False  # not reported yet: checked again, but not at each step
        first = self._count - len(run) + 1
        before = [block for block in self._blocks if block.ordinal + block.steps <= first][-BASE_BLOCKS:]
        if len(before) < FIRST_BLOCKS:
            return False
        if len(run) >= 64 * RUN_STEPS:
            self._end_run()  # the other test has had enough
            return False
        if median([whole.seconds for whole in run]) <= self._level:
            return False  # many of them are no longer than before
        found = ChangePoint(
            first,
            run[0].step.index,
            run[0].step.started_at,
            level_of(before),
            parts_of(before),
            spread_of(before),
            work_of(before),
        )
        return self._confirm_or_hold(found, run)

    # ---- blocks ----

    def _close(self) -> bool:
        block = make_block(self._open, self._count)
        self._open = []
        self._open_seconds = 0.0
        self._blocks.append(block)
        self._closed += 1
        reported = self._check_held() or self._compare_windows()
        self._set_level(block)
        if not reported:
            self._bring_up_to_date()
        return reported

    def _set_level(self, block: Block) -> None:
        """Update the usual step time and the level that a row of steps does not exceed."""
        if self._score > 1 or len(self._blocks) < FIRST_BLOCKS:
            return
        if self._usual < math.inf:
            self._bursts.append(block.low - self._usual)
        recent = list(islice(reversed(self._blocks), BASE_BLOCKS))
        self._usual = usual_level = level_of(recent)
        highs = sorted(block.high for block in recent)
        least = RUN_LEAST if len(self._bursts) >= BASE_BLOCKS else RUN_LEAST_AT_FIRST
        over = max(least, min(RUN_MOST, BURST_MARGIN * max(self._bursts, default=0.0)))
        self._level = math.exp(max(usual_level + over, highs[len(highs) * 3 // 4] + math.log(1.1)))
        self._rare.set_usual(math.exp(usual_level), math.exp(median(highs)), partial(parts_of, recent))

    def _compare_windows(self) -> bool:
        """Compare the last blocks with those before them, in windows of several lengths."""
        blocks, now = self._blocks, self._closed
        unknown, columns, number = 1 + FEW / (1 + now / BASE_BLOCKS), Columns(blocks), len(blocks)
        for scale, (width, factor, seconds) in enumerate(SCALES):
            if len(blocks) < width + max(width, 4) or now % max(1, width // 4):
                break
            first, split = max(0, number - (1 + BEFORE) * width), number - width
            usual = math.exp(median_level(columns.column(None)[first:split], None))
            least = math.log(factor) * unknown
            short = sum([block.seconds for block in islice(blocks, split, None)]) < seconds
            for name in (None, *islice(blocks[-1].parts, MOST_PARTS)):
                column, over = columns.column(name), None if name is None else usual
                # The next line is the longest: log1p grows by at most what its argument does.
                if now % width and over and max(column[first:]) - min(column[first:]) < least * over:
                    continue
                shift = median_level(column[split:], over) - median_level(column[first:split], over)
                if now % width == 0:
                    self._past_values(name)[scale].add(now, shift)
                if abs(shift) < least or (short and shift > 0):
                    continue
                compared = list(islice(blocks, first, None))
                if self._is_confirmed(compared, series_of(compared, name, usual), name, scale, least):
                    return True
        return False

    def _past_values(self, name: str | None) -> tuple[PastValues, ...]:
        past = self._values.get(name)
        if past is None:
            if len(self._values) > 2 * MOST_PARTS:
                del self._values[next(reversed(self._values))]
            past = self._values[name] = tuple(PastValues() for _ in SCALES)
        return past

    def _usual_shift(self, name: str | None, scale: int, until: int) -> float:
        """Return the usual shift of windows of that length. There are few long windows at first; shorter ones
        shift more."""
        past = self._past_values(name)
        known, usual = past[scale].usual(until)
        while known < ENOUGH and scale:
            scale -= 1
            known, shorter = past[scale].usual(until)
            usual = max(usual, shorter)
        return usual

    def _is_confirmed(
        self, blocks: list[Block], values: list[float], name: str | None, scale: int, least: float
    ) -> bool:
        """Return whether the shift passes the closer check and is reported."""
        place, width = best_split(values), SCALES[scale][0]
        before, after = values[:place], values[place:]
        if len(before) < max(4, width // 2) or len(after) < max(2, width * 3 // 4):
            return False
        shift = median(after) - median(before)
        usual = self._usual_shift(name, scale, self._closed - len(after))
        if abs(shift) < max(least, usual) or not _is_step(before, after, max(min(4, width), width // 4)):
            return False
        earlier, first = blocks[:place], blocks[place]
        if (level_of(blocks[place:]) - level_of(earlier)) / shift < WITH_THE_STEP:
            return False  # time that moved from one part to another
        level, parts, spread = level_of(earlier), parts_of(earlier), spread_of(earlier)
        return self._confirm_or_hold(
            ChangePoint(first.ordinal, first.step, first.started_at, level, parts, spread, work_of(earlier)),
            None,
        )

    # ---- what was found ----

    def _confirm_or_hold(self, found: ChangePoint, run: list[WholeStep] | None) -> bool:
        """Report it now, or hold it back until it has lasted."""
        since = self._since(found)
        after = make_block(run, 0) if run else None
        level = after.level if after else level_of(since)
        parts = after.parts if after else parts_of(since)
        spread = after.high - after.low if after else spread_of(since)
        work = after.work if after else work_of(since)
        if self._elapsed_since(found) < found.seconds_to_last(level, parts, spread, work):
            self._held = self._held or (found, level - found.before)
            return False
        self._establish(found, level, parts, work)
        return True

    def _since(self, found: ChangePoint) -> list[Block]:
        return [block for block in self._blocks if block.ordinal >= found.ordinal]

    def _elapsed_since(self, found: ChangePoint) -> float:
        return sum(block.seconds for block in self._since(found)) + self._open_seconds

    def _check_held(self) -> bool:
        """Return True if what was held back has lasted; it is dropped when steps are back."""
        if self._held is None:
            return False
        held, first_shift = self._held
        since = self._since(held)
        if len(since) < 2:
            return False
        level = level_of(since)
        shift = level - held.before
        recent = level_of(since[-4:]) - held.before
        if min(shift, recent) < HELD_SHARE * first_shift:
            self._held = None
            return False
        parts = parts_of(since)
        work = work_of(since)
        if self._elapsed_since(held) < held.seconds_to_last(level, parts, spread_of(since), work):
            return False
        lasting = sum(block.level > held.before + shift / 2 for block in since)
        if lasting < LASTING_SHARE * len(since):
            self._held = None
            return False
        self._establish(held, level, parts, work)
        return True

    def _establish(self, found: ChangePoint, level: float, parts: dict[str, float], work: Work) -> None:
        slow = self._slow_since
        if slow is not None and found.started_at - slow.started_at > NORMAL_AFTER_SECONDS:
            slow = None
        if level > found.before:
            reported = found
            if slow is None:
                slow = found
        elif slow is not None and level - slow.before > max(math.log(1.1), 0.25 * (found.before - slow.before)):
            reported = slow  # faster than at its worst, still slower than before
        else:
            reported, slow = found, None
        self._slow_since = slow
        self._reported = reported
        self._found = found
        self._change = reported.change(level, parts, work)
        blocks = self._since(found)
        self._blocks.clear()
        self._blocks.extend(blocks)
        self._held = None
        for past in self._values.values():
            for values in past:
                values.remove_since(self._closed - len(blocks))
        self._rare.forget_since(found.ordinal)
        self._end_run()
        self._level = math.inf
        self._usual = math.inf

    def _bring_up_to_date(self) -> None:
        since = list(islice(reversed(self._blocks), SINCE_BLOCKS))
        if self._reported is not None and self._closed % 4 == 0 and since:
            self._change = self._reported.change(level_of(since), parts_of(since), work_of(since))


def _is_step(before: list[float], after: list[float], near: int) -> bool:
    """Return True if nearly all values lie on their side, and the change is between those next to each other."""
    low, high = median(before), median(after)
    shift, middle = high - low, (low + high) / 2
    if sum((value > middle) == (shift > 0) for value in after) < LASTING_SHARE * len(after):
        return False
    if sum((value < middle) == (shift > 0) for value in before) < LASTING_SHARE * len(before):
        return False
    return (median(after[:near]) - median(before[-near:])) / shift >= ABRUPT_SHARE

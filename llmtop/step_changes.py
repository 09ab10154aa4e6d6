"""When a training's steps became slower or faster for good, told from noise and from rare long steps.

Two tests of logarithms of whole steps (a factor is a difference there), each against what this very training did:

- A Bernoulli CUSUM (Reynolds and Stoumbos, 1999; CUSUM: Page, 1954) for large changes: one up for a step above a
  level, three down for any other, told at eight. One long step counts no more than another, however long it is, so
  an evaluation is none; eight in a row above what one in six exceeds are.
- Moving medians (MOSUM over several windows: Eichinger and Kirch, 2018) for small ones: the last 2, 4, … 64 blocks
  of eight steps against the four times as many before them.

Steps are not independent: other programs take the CPUs for seconds, and batches come sorted by length. A threshold
for independent noise would be passed all the time. So each test's own values of the past, which hold such stretches,
set its threshold, and theory only the least one. How often either is wrong, and how late, is in
docs/measurements.md; tests/test_step_changes.py holds it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from llmtop.rare_steps import RareStepFinder
from llmtop.step_blocks import (
    KEPT_VALUES,
    Block,
    PastValues,
    block_of,
    level_of,
    median_of,
    parts_of,
    series_of,
    split_of,
    spread_of,
)
from llmtop.snapshot import Change, RareSteps
from llmtop.whole_steps import WholeStep

BLOCK_STEPS = 8
BLOCK_SECONDS = 0.5
"""A block is so many steps and lasts so long at least: what is over sooner is nobody's concern, and a training of a
thousand steps a second is looked at no more often than one of thirty."""
BASE_BLOCKS = 32
"""Blocks that say what is usual now."""
SINCE_BLOCKS = 64
"""Blocks after a change that say what steps came to."""
FIRST_BLOCKS = 3
"""Blocks without which nothing is usual yet."""

RUN_STEPS = 8
RUN_SECONDS = 1.0
"""A run above the level is told when it is so long; with both, 50 ms that become 250 are told after eight steps."""
RUN_PENALTY = 3
RUN_LEAST = math.log(2.0)
RUN_LEAST_AT_FIRST = math.log(2.5)
"""The least level over the usual one, and while few blocks are known."""
RUN_MOST = math.log(4.0)
"""Bursts of the past raise the level up to here: what is five times as long is always told within ten steps."""
BURST_MARGIN = 1.25

SCALES = ((2, 2.0, 2.0), (4, 1.5, 4.0), (8, 1.3, 8.0), (16, 1.15, 15.0), (32, 1.12, 20.0), (64, 1.10, 30.0))
"""Blocks in a window, the least factor that is told of it, and the seconds that it lasts at least."""
BEFORE = 4
"""So many windows before are compared with."""
ENOUGH = 16
FEW = 2.0
MOST_PARTS = 16
WITH_THE_STEP = 0.5
LASTING_SHARE = 0.8
ABRUPT_SHARE = 0.6
"""Of the change, that must lie between the blocks next to the change point: a drift has a fifth."""

SPREAD_OUT = 0.3
"""Share of the change, as a logarithm, that the rest of the step has too where all of it got slower."""
HELD_SECONDS = 60.0
HELD_SECONDS_LARGE = 15.0
LARGE = math.log(4.0)
MORE_SPREAD = 1.5
"""If all parts of a step are slower at once, the machine is busy with something else, most often for a moment: that
is told when it lasts, and sooner when it is large and steps are as even as before: programs that take turns on a CPU
make them uneven."""
NORMAL_AFTER_SECONDS = 1800.0
"""Of steps at a new length, after which that is the normal one."""


class _Found(NamedTuple):
    """A change point."""

    ordinal: int
    """The first step of the new length, as counted here."""
    step: int
    started_at: float
    before: float
    """Logarithm of the usual step before."""
    before_parts: dict[str, float]
    before_spread: float
    """Between what one step in eight is below and above, as logarithms, in a block before."""


class StepChanges:
    """Follows one training's steps, oldest first, without warm-up. Bounded memory; not safe for several threads."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything: the training begins anew."""
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
        self._bursts: deque[float] = deque(maxlen=2 * KEPT_VALUES)
        self._run: list[WholeStep] = []
        self._run_seconds = 0.0
        self._score = 0
        self._values: dict[str | None, tuple[PastValues, ...]] = {}
        self._held: _Found | None = None
        self._found: _Found | None = None
        self._slow_since: _Found | None = None
        self._told: _Found | None = None
        self._rare = RareStepFinder()

    @property
    def change(self) -> Change | None:
        """The last change, with what steps have come to since."""
        return self._change

    @property
    def rare(self) -> RareSteps | None:
        """The long steps that come now and then and cost most, if they cost anything to speak of."""
        return self._rare.found()

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
            if self._score >= RUN_STEPS and self._run_seconds >= RUN_SECONDS and self._run_told():
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

    def _run_told(self) -> bool:
        run = self._run
        if len(run) > RUN_STEPS and len(run) % RUN_STEPS:
            return False  # not told before: looked at again, but not at each step
        first = self._count - len(run) + 1
        before = [block for block in self._blocks if block.ordinal + block.steps <= first][-BASE_BLOCKS:]
        if len(before) < FIRST_BLOCKS:
            return False
        if len(run) >= 64 * RUN_STEPS:
            self._end_run()  # the other test has had enough
            return False
        if sorted([whole.seconds for whole in run])[len(run) // 2] <= self._level:
            return False  # many of them are no longer than before
        found = _Found(
            first, run[0].step.index, run[0].step.started_at, level_of(before), parts_of(before), spread_of(before)
        )
        return self._weigh(found, run)

    # ---- blocks ----

    def _close(self) -> bool:
        block = block_of(self._open, self._count)
        self._open = []
        self._open_seconds = 0.0
        self._blocks.append(block)
        self._closed += 1
        told = self._hold_on() or self._look()
        self._set_level(block)
        if not told:
            self._bring_up_to_date()
        return told

    def _set_level(self, block: Block) -> None:
        """What a step is usually, and what many in a row do not exceed."""
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
        self._rare.set_usual(math.exp(usual_level), math.exp(highs[len(highs) // 2]), parts_of(recent))

    def _look(self) -> bool:
        """Compare the last blocks with those before them, in windows of several lengths."""
        blocks, now = self._blocks, self._closed
        unknown = 1 + FEW / (1 + now / BASE_BLOCKS)
        for scale, (width, factor, seconds) in enumerate(SCALES):
            if len(blocks) < width + max(width, 4) or now % max(1, width // 4):
                break
            after = list(islice(blocks, len(blocks) - width, None))
            before = list(islice(blocks, max(0, len(blocks) - (1 + BEFORE) * width), len(blocks) - width))
            usual, least = math.exp(level_of(before)), math.log(factor) * unknown
            short = sum([block.seconds for block in after]) < seconds
            for name in (None, *islice(after[-1].parts, MOST_PARTS)):
                values = series_of([*before, *after], name, usual)
                shift = median_of(values[-width:]) - median_of(values[:-width])
                if now % width == 0:
                    self._past(name)[scale].add(now, shift)
                if abs(shift) < least or short:
                    continue
                if self._changed([*before, *after], values, name, scale, least):
                    return True
        return False

    def _past(self, name: str | None) -> tuple[PastValues, ...]:
        past = self._values.get(name)
        if past is None:
            if len(self._values) > 2 * MOST_PARTS:
                del self._values[next(reversed(self._values))]
            past = self._values[name] = tuple(PastValues() for _ in SCALES)
        return past

    def _usual_shift(self, name: str | None, scale: int, until: int) -> float:
        """What windows of that length do; of long ones there are few at first, but shorter ones do more."""
        past = self._past(name)
        known, usual = past[scale].usual(until)
        while known < ENOUGH and scale:
            scale -= 1
            known, shorter = past[scale].usual(until)
            usual = max(usual, shorter)
        return usual

    def _changed(
        self, blocks: list[Block], values: list[float], name: str | None, scale: int, least: float
    ) -> bool:
        place = split_of(values)
        before, after = values[:place], values[place:]
        width = SCALES[scale][0]
        if len(before) < max(4, width // 2) or len(after) < max(2, width * 3 // 4):
            return False
        shift = median_of(after) - median_of(before)
        if abs(shift) < max(least, self._usual_shift(name, scale, self._closed - len(after))):
            return False
        middle = median_of(before) + shift / 2
        if sum((value > middle) == (shift > 0) for value in after) < LASTING_SHARE * len(after):
            return False
        if sum((value < middle) == (shift > 0) for value in before) < LASTING_SHARE * len(before):
            return False
        near = median_of(after[: max(2, width)]) - median_of(before[-max(2, width) :])
        if near / shift < ABRUPT_SHARE:
            return False
        if name is not None and (level_of(blocks[place:]) - level_of(blocks[:place])) / shift < WITH_THE_STEP:
            return False  # time that moved from one part to another
        first = blocks[place]
        earlier = blocks[:place]
        found = _Found(
            first.ordinal, first.step, first.started_at, level_of(earlier), parts_of(earlier), spread_of(earlier)
        )
        return self._weigh(found, None)

    # ---- what was found ----

    def _weigh(self, found: _Found, run: list[WholeStep] | None) -> bool:
        """Tell it now, or hold it back until it has lasted."""
        since = self._since(found)
        after = block_of(run, 0) if run else None
        level = after.level if after else level_of(since)
        parts = after.parts if after else parts_of(since)
        shift = level - found.before
        if shift > 0 and _is_everywhere(found, level, parts):
            spread = after.high - after.low if after else spread_of(since)
            if self._elapsed_since(found) < _holds_back(found, shift, spread):
                if self._held is None:
                    self._held = found
                return False
        self._establish(found, level, parts)
        return True

    def _since(self, found: _Found) -> list[Block]:
        return [block for block in self._blocks if block.ordinal >= found.ordinal]

    def _elapsed_since(self, found: _Found) -> float:
        return sum(block.seconds for block in self._since(found)) + self._open_seconds

    def _hold_on(self) -> bool:
        """Whether what was held back has lasted; it is dropped when steps are back."""
        held = self._held
        if held is None:
            return False
        since = self._since(held)
        if len(since) < 2:
            return False
        level = level_of(since)
        shift = level - held.before
        recent = level_of(since[-4:]) - held.before
        if shift < math.log(1.1) or recent < shift / 2:
            self._held = None
            return False
        parts = parts_of(since)
        if _is_everywhere(held, level, parts):
            if self._elapsed_since(held) < _holds_back(held, shift, spread_of(since)):
                return False
        lasting = sum(block.level > held.before + shift / 2 for block in since)
        if lasting < LASTING_SHARE * len(since):
            self._held = None
            return False
        self._establish(held, level, parts)
        return True

    def _establish(self, found: _Found, level: float, parts: dict[str, float]) -> None:
        slow = self._slow_since
        if slow is not None and found.started_at - slow.started_at > NORMAL_AFTER_SECONDS:
            slow = None
        if level > found.before:
            told = found
            if slow is None:
                slow = found
        elif slow is not None and level - slow.before > max(math.log(1.1), 0.25 * (found.before - slow.before)):
            told = slow  # better, not well
        else:
            told, slow = found, None
        self._slow_since = slow
        self._told = told
        self._found = found
        self._change = _change(told, level, parts)
        blocks = self._since(found)
        self._blocks.clear()
        self._blocks.extend(blocks)
        self._held = None
        for past in self._values.values():
            for values in past:
                values.take_back(self._closed - len(blocks))
        self._rare.forget_since(found.ordinal)
        self._end_run()
        self._level = math.inf
        self._usual = math.inf

    def _bring_up_to_date(self) -> None:
        since = list(islice(self._blocks, SINCE_BLOCKS))
        if self._told is not None and self._closed % 4 == 0 and since:
            self._change = _change(self._told, level_of(since), parts_of(since))


def _holds_back(found: _Found, shift: float, spread: float) -> float:
    """Seconds that it must last if all of the step got slower."""
    if shift < LARGE or spread > max(MORE_SPREAD * found.before_spread, 0.1):
        return HELD_SECONDS
    return HELD_SECONDS_LARGE


def _grown(found: _Found, parts: dict[str, float]) -> tuple[str, float, float] | None:
    """The part that changed most, with its seconds before and after."""
    names = found.before_parts.keys() | parts.keys()
    each = [(name, found.before_parts.get(name, 0.0), parts.get(name, 0.0)) for name in names]
    return max(each, key=lambda one: abs(one[2] - one[1]), default=None)


def _is_everywhere(found: _Found, level: float, parts: dict[str, float]) -> bool:
    """Whether the rest of the step got slower as well, beside the part that grew most."""
    part = _grown(found, parts)
    if part is None:
        return False
    before, after = math.exp(found.before) - part[1], math.exp(level) - part[2]
    if before <= 0.1 * math.exp(found.before) or after <= 0:
        return False  # there is no rest
    return math.log(after / before) >= SPREAD_OUT * (level - found.before)


def _change(found: _Found, level: float, parts: dict[str, float]) -> Change:
    before, after = math.exp(found.before), math.exp(level)
    part = _grown(found, parts)
    if part is not None and (part[2] - part[1]) / (after - before or 1.0) < 0.5:
        part = None
    return Change(
        since_step=found.step,
        since=found.started_at,
        before_seconds=before,
        after_seconds=after,
        part=part[0] if part else None,
        part_before_seconds=part[1] if part else None,
        part_after_seconds=part[2] if part else None,
    )

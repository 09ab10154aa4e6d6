"""Chooses the step at which a capture of several ranks begins: late enough that every node has read the
request."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from llmtop.capture.base.step_listener import StepListener
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import duration

AHEAD = "+20"
"""The step of a capture where none is named: so many after the present one."""
MIN_LEAD_SECONDS = 3.0
"""A node polls once per second, its ranks must be reached, and one may be steps ahead of those on this node."""
_MIN_STEPS_AHEAD = 2
"""The step that is under way, and the one that the profiler takes to start."""
_FORM = re.compile(r"^(?P<plus>\+?)(?P<number>\d{1,15})$", re.ASCII)


@dataclass(frozen=True)
class StepChoice:
    """Requested step."""

    number: int
    relative: bool

    @classmethod
    def parse(cls, text: str) -> StepChoice:
        """Read "+20" (steps from now) or "5000" (the script's own count).

        Raises:
            UnusableInput: it is neither.
        """
        found = _FORM.match(text.strip())
        if found is None:
            raise UnusableInput(
                f"--at-step {text!r} is no step: +20 is 20 steps from now, 5000 is step 5000 by the script's "
                f"own count"
            )
        return cls(int(found["number"]), bool(found["plus"]))


@dataclass(frozen=True)
class ChosenStep:
    """The step, and how far it is."""

    step: int
    last: int
    """The last one that has ended."""
    seconds: float
    """Until it begins, as steps go now."""
    moved: bool = False
    """True if it is later than was asked for."""

    @property
    def sentence(self) -> str:
        """For people."""
        why = (
            f"; later than asked, since every node must have heard of it, which takes {duration(MIN_LEAD_SECONDS)}"
            if self.moved
            else ""
        )
        return f"it begins at step {self.step}, in some {duration(self.seconds)} (step {self.last} has ended{why})"


def choose_step(wanted: StepChoice, watch: StepListener) -> ChosenStep:
    """Return the step at which all begin.

    Raises:
        NotPossibleHere: no step is known.
        UnusableInput: that step has passed, or comes too soon.
    """
    publishing = [[step.index for step in steps[-2:]] for steps in watch.steps_within(0).values() if steps]
    median = watch.median_seconds()
    if not publishing or not median:
        raise NotPossibleHere("the training has not finished a step yet: wait for the first step")
    *before, last = max(publishing, key=lambda indices: indices[-1])
    by = max(1, last - before[0]) if before else 1  # some scripts count in tens, or in samples
    soonest = last + by * (_MIN_STEPS_AHEAD + math.ceil(MIN_LEAD_SECONDS / median))
    step = last + by * wanted.number if wanted.relative else wanted.number
    if not wanted.relative and step <= last:
        raise UnusableInput(
            f"step {wanted.number} has passed: step {last} has ended; --at-step +20 is 20 steps from now"
        )
    if not wanted.relative and step < soonest:
        raise UnusableInput(
            f"step {step} is too early to notify all ranks: step {last} has ended, and a step takes "
            f"{duration(median)}; give {soonest} or more, or --at-step +20"
        )
    if (step - last) % by:
        raise UnusableInput(
            f"this script counts its steps by {by}, and {step} is not one of them: pass {soonest} or +20"
        )
    chosen = max(step, soonest)
    return ChosenStep(chosen, last, (chosen - last) / by * median, moved=chosen > step)

"""The ncu command for a kernel of a report: which launches, by names that ncu and the profiler spell alike.

Demangled names are not alike: ncu casts the literals of templates ((int)4 for 4) and writes lambdas in a way of
its own, so a whole name of torch.profiler's lets nothing through. The function's name, without arguments, is the
same; the wanted kernel is found by counting launches. Where a template's launches are too many for that, the words
that both spellings have are searched. Either way ncu's output is checked again.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmtop.report.model import KernelTime

WARM_UP_STEPS = 3
"""Steps that are passed over: allocations, choices of algorithms and compilation lie in them."""
_WITHOUT_STEPS = 5
"""Launches that are profiled where nothing says which."""
_MOST = 24
"""Launches in one run: each is replayed some forty times, with the memory it writes saved and put back."""


@dataclass(frozen=True)
class LaunchFilter:
    """Which launches ncu profiles."""

    function: str
    """The kernel's name without template arguments."""
    skip: int | None
    """Launches that the filter lets through to pass over first; None where the number of warm-up launches is
    unknown."""
    count: int
    """Launches to profile, one after the other."""
    functor: str = ""
    """The word of the template's arguments that is searched too; empty: the function's name is enough."""
    pattern: str = ""
    """A regular expression over the template's arguments in place of that word; empty: the word is enough."""

    @property
    def options(self) -> list[str]:
        """Return ncu's options."""
        function = re.escape(self.function)
        # Whether an expression must fit a whole name or a part of it: this one is for both.
        inside = self.pattern or rf"{re.escape(self.functor)}\b"
        pattern = rf"^.*\b{function}<.*\b{inside}.*$" if self.functor else f"^{function}$"
        base = "demangled" if self.functor else "function"
        found = ["--kernel-name-base", base, "--kernel-name", f"regex:{pattern}"]
        if self.skip is not None:
            found += ["--launch-skip", str(self.skip)]
        return [*found, "--launch-count", str(self.count)]

    @property
    def description(self) -> str:
        """Return the description in words: "launches 10 to 14 of NAME"."""
        first = (self.skip or 0) + 1
        which = f"launch {first}" if self.count == 1 else f"launches {first} to {first + self.count - 1}"
        return f"{which} of {self.function}{f' with {self.functor}' if self.functor else ''}"


def launches_of(row: KernelTime, kernels: Sequence[KernelTime] = ()) -> LaunchFilter:
    """Return which launches hold one of this kernel that takes about its mean time or longer.

    Args:
        row: the kernel.
        kernels: all of the report; needed for a report of a version without the order of launches.
    """
    order, own = row.launches, launches_a_step(row)
    if row.pattern:  # others share the function's name, and the pattern fits none of them
        skip, count = (WARM_UP_STEPS * round(own), 1) if own else (None, _WITHOUT_STEPS)
        return LaunchFilter(row.short_name, skip, count, row.functor, row.pattern)
    if order is not None and (order.in_a_row <= _MOST or not row.functor):
        return LaunchFilter(row.short_name, WARM_UP_STEPS * order.per_step, min(order.in_a_row, _MOST))
    if order is not None and own:
        count = min(order.own_in_a_row, _MOST)
        return LaunchFilter(row.short_name, WARM_UP_STEPS * round(own), count, functor_word(row.functor))
    everything = sum(launches_a_step(other) for other in kernels if other.short_name == row.short_name)
    if not own or not everything:
        return LaunchFilter(row.short_name, None, _WITHOUT_STEPS)
    in_a_row = 1 if everything == own else math.ceil(2 * everything / own)
    return LaunchFilter(row.short_name, WARM_UP_STEPS * round(everything), min(in_a_row, _MOST))


def functor_word(functor: str) -> str:
    """Return a functor without the type that it works on, or the sizes."""
    return functor.partition("<")[0].partition(" ")[0]


def launches_a_step(row: KernelTime) -> float:
    """Launches a step of one device; 0 where that is not known."""
    return sum(one.count for one in row.per_step) / len(row.per_step) if row.per_step else 0.0


def arguments(launches: LaunchFilter, file: str | Path, ncu: str = "ncu") -> list[str]:
    """Return the words of the command, up to the one that is profiled.

    Clocks are left as they are: at the base clock a kernel is another one than in training. ncu ends the program
    once it has its launches.

    Args:
        launches: what is profiled.
        file: where the report goes; ncu adds .ncu-rep, and writes over one that is there.
        ncu: the program.
    """
    always = ["--set", "full", "--clock-control", "none", "--target-processes", "all"]
    return [ncu, *always, *launches.options, "--kill", "yes", "-f", "-o", str(file)]


def command_line(launches: LaunchFilter, file: str | Path, command: str) -> str:
    """Return the command to be copied into a shell.

    Args:
        launches: what is profiled.
        file: as in `arguments`.
        command: the training's, quoted for a shell.
    """
    return f"{shlex.join(arguments(launches, file))} {command}"


def file_stem(row: KernelTime) -> str:
    """Return a file's name for a kernel's report, without its ending."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", row.name).strip("-")
    return f"ncu-{words[:80]}"

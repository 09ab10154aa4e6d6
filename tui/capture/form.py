"""State of the capture dialog: target, engine, window, options, and trigger condition.

A plain object without a screen; the dialog paints it and moves through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from llmtop import config
from llmtop.capture import capabilities, targets
from llmtop.capture import capture_list as capture_store
from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import DEFAULT_SECONDS, DEFAULT_STEPS, Plan, Target
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.capture.trigger import AlertCondition, Condition, SlowStep
from llmtop.nsys_cli.tool import Option

STEPS = (1, 2, 3, 5, 10, 20, 50, 100)
SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
CONDITIONS: tuple[Condition | None, ...] = (
    None,
    SlowStep(medians=1.5),
    SlowStep(medians=2.0),
    SlowStep(medians=3.0),
    AlertCondition(),
)
ALWAYS_LISTED = "nsys"
"""The engine that is listed even where it is unavailable: it is the best one, and must be there from the start."""
TARGET, ENGINE, LENGTH, OPTIONS, WHEN = "target", "engine", "length", "options", "when"


def _usual_length() -> tuple[int | None, float | None]:
    """Return the configured length, else the default."""
    usual = config.current().capture
    return (None, usual.seconds) if usual.seconds else (usual.steps or DEFAULT_STEPS, None)


@dataclass(frozen=True)
class CapturableProcess:
    """A process, and whether each engine supports it."""

    target: Target
    abilities: tuple[Ability, ...]


def capturable_processes() -> tuple[CapturableProcess, ...]:
    """Return the processes that can be captured. Queries every training and every tool, which takes up to a few
    seconds."""
    attached = targets.list_attached()
    others = targets.list_unattached(frozenset(target.pid for target in attached))
    return tuple(CapturableProcess(target, capabilities.list_abilities(target)) for target in (*attached, *others))


@dataclass
class Form:
    """The dialog's answers, filled with the best choice from the beginning."""

    known: tuple[CapturableProcess, ...]
    parent: Path = field(default_factory=capture_store.default_parent)
    pid: int | None = None
    """The process that the person was looking at."""
    alone: bool = False
    """True if that process is meant, and not the job that it is a rank of."""
    target: int = 0
    engine: str = ""
    length: tuple[int | None, float | None] = field(default_factory=_usual_length)
    chosen: set[str] = field(default_factory=lambda: set(config.current().capture.options))
    when: int = 0
    at: int = 0
    """Which line the person is on."""
    unfolded: bool = False
    """True if engines that are unavailable have a line each."""
    touched: bool = False
    """True if the person has changed an answer."""

    def __post_init__(self) -> None:
        self.groups = self._groups()
        looked_at = [i for i, group in enumerate(self.groups) if [p.target.pid for p in group] == [self.pid]]
        together = len(self.groups) > 1 and len(self.groups[0]) > 1 and not (self.alone and looked_at)
        self.target = 0 if together else next(iter(looked_at), 0)
        self.engine = self._best()
        if together and looked_at and not (self.chosen_engine and self.chosen_engine.one_file_for_all):
            self.target = looked_at[0]  # one file a rank is more than most want
            self.engine = self._best()
        self.chosen &= {option.name for option in self.available_options()}
        if not self._can_count_steps() and self.length[0]:
            self.length = (None, DEFAULT_SECONDS)

    def _groups(self) -> list[tuple[CapturableProcess, ...]]:
        """Return the processes that can be captured together: all ranks of the training, and each process
        alone."""
        ranked = tuple(one for one in self.known if one.target.rank is not None)
        each: list[tuple[CapturableProcess, ...]] = [(one,) for one in self.known]
        return [ranked, *each] if len(ranked) > 1 else each

    @property
    def group(self) -> tuple[CapturableProcess, ...]:
        """The processes that are chosen to be captured."""
        return self.groups[self.target] if self.groups else ()

    def group_name(self, group: tuple[CapturableProcess, ...]) -> str:
        """Return the name of a choice of processes: a rank, a pid, or the number of ranks."""
        if len(group) == 1:
            return group[0].target.name
        return f"all {len(group)} ranks"

    def abilities(self) -> list[Ability]:
        """Return True if each engine supports all chosen processes."""
        together = []
        for index, first in enumerate(self.group[0].abilities if self.group else ()):
            each = [prospect.abilities[index] for prospect in self.group]
            together.append(next((ability for ability in each if not ability.is_supported), first))
        return together

    @property
    def chosen_engine(self) -> Engine | None:
        """Return the engine that `engine` names; None if no engine can."""
        return ENGINES.get(self.engine)

    def _best(self) -> str:
        """Return the engine that the configuration asks for where it can, else the first that can."""
        preferred = config.current().capture.engine
        if preferred and any(one.is_supported for one in self.abilities() if one.engine == preferred):
            return preferred
        return capabilities.best_engine(tuple(self.abilities())) or ""

    def _can_count_steps(self) -> bool:
        """Return True if steps can be counted: by the process itself, or by the engine in it."""
        attached = all(one.target.hello is not None for one in self.group)
        return attached or (self.chosen_engine is not None and self.chosen_engine.counts_steps)

    def available_options(self) -> list[Option]:
        """Return the further recordings that the engine supports."""
        if self.chosen_engine is None:
            return []
        pauses = any(ability.pauses for ability in self.abilities() if ability.engine == self.engine)
        return self.chosen_engine.available_options(pauses)

    def option_refusal(self, name: str) -> Refusal | None:
        """Return why one of these cannot be had on this machine; None if it can."""
        return None if self.chosen_engine is None else self.chosen_engine.option_refusal(name)

    def fields(self) -> list[tuple[str, str]]:
        """(kind, name) of each line that can be changed, from top to bottom."""
        lines = [(TARGET, ""), (ENGINE, ""), (LENGTH, "")]
        lines += [(OPTIONS, option.name) for option in self.available_options()]
        return [*lines, (WHEN, "")]

    def move(self, step: int) -> None:
        """Move the cursor by so many lines."""
        self.at = min(max(self.at + step, 0), len(self.fields()) - 1)

    def updated(self, known: tuple[CapturableProcess, ...]) -> Form:
        """Return the same answers for the processes that there are now; untouched answers are made anew.

        Args:
            known: as `capturable_processes` returns them.
        """
        fresh = replace(self, known=known, target=0, engine="", touched=False, chosen=set(self.chosen))
        if self.touched:
            pids = [one.target.pid for one in self.group]
            same = [i for i, group in enumerate(fresh.groups) if [one.target.pid for one in group] == pids]
            if same:
                fresh.target, fresh.touched = same[0], True
                fresh.take_engine(self.engine)
                fresh.chosen |= self.chosen & {option.name for option in fresh.available_options()}
                fresh.length = self.length if self.length in fresh.lengths() else fresh.length
        else:
            fresh.length, fresh.chosen = _usual_length(), set(config.current().capture.options)
            fresh.__post_init__()
        fresh.at = min(self.at, len(fresh.fields()) - 1)
        return fresh

    def unavailable(self) -> list[Ability]:
        """Return the engines that cannot capture what is chosen, nsys apart: its line says how to start under
        it."""
        return [one for one in self.abilities() if not one.is_supported and one.engine != ALWAYS_LISTED]

    def change(self, step: int) -> None:
        """Another value on this line."""
        if not self.groups:
            return
        self.touched = True
        kind, name = self.fields()[min(self.at, len(self.fields()) - 1)]
        if kind == TARGET:
            self.target = (self.target + step) % len(self.groups)
            self.take_engine(self.engine)
        elif kind == ENGINE:
            able = [ability.engine for ability in self.abilities() if ability.is_supported]
            if able:
                index = able.index(self.engine) if self.engine in able else 0
                self.take_engine(able[(index + step) % len(able)])
        elif kind == LENGTH:
            lengths = self.lengths()
            index = lengths.index(self.length) if self.length in lengths else 0
            self.length = lengths[min(max(index + step, 0), len(lengths) - 1)]
        elif kind == OPTIONS:
            self.chosen ^= {name}
        else:
            self.when = (self.when + step) % len(CONDITIONS)

    def take_engine(self, engine: str) -> None:
        """Choose an engine, or the best one where it cannot; what does not go with it is dropped."""
        able = {ability.engine for ability in self.abilities() if ability.is_supported}
        self.engine = engine if engine in able else self._best()
        self.chosen &= {option.name for option in self.available_options()}
        if self.length not in self.lengths():
            self.length = (DEFAULT_STEPS, None) if self._can_count_steps() else (None, DEFAULT_SECONDS)

    def lengths(self) -> list[tuple[int | None, float | None]]:
        """Return the lengths there are: steps where they can be counted, and seconds."""
        usual_steps, usual_seconds = _usual_length()
        counts = sorted({*STEPS, *([usual_steps] if usual_steps else [])})
        lengths = sorted({*SECONDS, *([usual_seconds] if usual_seconds else [])})
        steps: list[tuple[int | None, float | None]] = [(number, None) for number in counts]
        seconds: list[tuple[int | None, float | None]] = [(None, number) for number in lengths]
        return [*steps, *seconds] if self._can_count_steps() else seconds

    @property
    def preface(self) -> str:
        """Return a note to read before the answer; mostly empty."""
        return ""

    @property
    def fixed(self) -> str:
        """Why a line that does not change does not; empty where it is merely at its end."""
        return ""

    @property
    def condition(self) -> Condition | None:
        """Return the condition to wait for; None without one."""
        return CONDITIONS[self.when]

    def plan(self) -> Plan | None:
        """Return the plan; None if no capture is possible."""
        if not self.group or not self.engine:
            return None
        steps, seconds = self.length
        return Plan(
            engine=self.engine,
            targets=tuple(one.target for one in self.group),
            parent=self.parent,
            steps=steps,
            seconds=seconds,
            options=frozenset(self.chosen),
        )

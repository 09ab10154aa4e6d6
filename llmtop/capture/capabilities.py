"""Which engines can capture a process, why the others cannot, and the one command that would change that.

Asked before a key is pressed, by the dialog, by `llmtop doctor` and by the hub for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import Target
from llmtop.capture.base.ttl_cache import TtlCache
from llmtop.capture.engines import ENGINES, engine_named
from llmtop.errors import NotPossibleHere
from llmtop.protocol.wire import Hello
from llmtop.system import procfs


@dataclass(frozen=True)
class Ability:
    """Ability of one engine to capture one process now."""

    engine: str
    is_supported: bool
    reason: str
    """Content of its captures if supported, else why it is unavailable. One clause, without a full stop."""
    command: str = ""
    """Command that would make it available."""
    warning: str = ""
    """Warning before use, in one clause."""
    pauses: bool = False
    """True if it pauses the training unasked."""


def list_abilities(target: Target) -> tuple[Ability, ...]:
    """Return each engine's support of a process, best engine first. Takes up to 0.1 s."""
    alive = procfs.is_alive(target.pid)
    return tuple(_ability(engine, target, alive) for engine in ENGINES.values())


def _ability(engine: Engine, target: Target, alive: bool) -> Ability:
    no = engine.refusal(target) if alive else Refusal("the process has ended")
    if no is not None:
        return Ability(engine.name, False, *no)
    return Ability(
        engine.name, True, engine.description, warning=engine.warning(target), pauses=engine.pauses(target)
    )


def best_engine(found: tuple[Ability, ...]) -> str | None:
    """Return the best engine that can; None if none can."""
    return next(
        (ability.engine for ability in found if ability.is_supported and ENGINES[ability.engine].has_time_report),
        None,
    )


def best_common_engine(targets: tuple[Target, ...]) -> str:
    """Return the best engine that can capture all of these.

    Raises:
        NotPossibleHere: there is none; the sentence gives the reason of the first one.
    """
    each = [list_abilities(target) for target in targets]
    reporting = [engine.name for engine in ENGINES.values() if engine.has_time_report]
    for name in reporting:
        if each and all(ability.is_supported for found in each for ability in found if ability.engine == name):
            return name
    reasons = (
        "; ".join(f"{a.engine}: {a.reason}" for a in each[0] if a.engine in reporting) if each else "no process"
    )
    raise NotPossibleHere(f"no engine can capture {targets[0].name if targets else 'nothing'} ({reasons})")


def require(target: Target, engine: str) -> None:
    """Refuse early and clearly.

    Raises:
        UnusableInput: there is no such engine.
        NotPossibleHere: that engine cannot capture that process.
    """
    ability = _ability(engine_named(engine), target, procfs.is_alive(target.pid))
    if not ability.is_supported:
        change = f"; to change that: {ability.command}" if ability.command else ""
        raise NotPossibleHere(f"{engine} cannot capture {target.name}: {ability.reason}{change}")


_cache: TtlCache[tuple[str, ...]] = TtlCache()


def capturable_engines(pid: int, hello: Hello | None) -> tuple[str, ...]:
    """Names of the engines that can capture a process now, best first.

    Cheap enough for every refresh of a screen: the answer holds some seconds for the same process and the same
    offers; a first call takes up to 0.1 s where nsys must be asked.
    """
    offers = tuple(hello.engines) if hello else ()

    def find() -> tuple[str, ...]:
        # a socket is only needed to capture; a hello proves that there is one
        target = Target(pid, hello=hello, socket=Path("/") if hello else None)
        return tuple(ability.engine for ability in list_abilities(target) if ability.is_supported)

    return _cache.get((pid, procfs.started_ticks(pid), offers), find)

"""Callbacks of modules that a training imports late: for its end, for a fork, and after a failure.

A module registers as the last statement of its import. So a callback that is here belongs to a complete module:
neither the end of a process nor a fork calls into a module that another thread is still importing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from llmtop.instrument.guest.guard import run_alone

EndName = Literal["inherited", "store", "op_ranges", "capture", "pause", "stacks", "run_log"]
ForkName = Literal["capture", "op_ranges", "store", "run_log"]
EndCallback = Callable[[Any], "bool | None"]
"""Takes the recorder. Returns False if something is left whose C++ destructors must not run."""
Callback = Callable[[Any], None]
"""Takes the recorder."""

_FORK_ORDER: tuple[ForkName, ...] = ("capture", "op_ranges", "store", "run_log")
_at_end: dict[EndName, EndCallback] = {}
_at_fork: dict[ForkName, Callback] = {}
_after_failure: list[Callback] = []
jax_steps_are_marked: Callable[[], bool] | None = None
"""True if the script's steps are marked for jax.profiler already. The integration for JAX sets it."""


def at_end(name: EndName, callback: EndCallback) -> None:
    """Register what runs when the process ends; `ending` has the order."""
    _at_end[name] = callback


def is_at_end(name: EndName) -> bool:
    """Return True if a module has registered its end."""
    return name in _at_end


def at_fork(name: ForkName, callback: Callback) -> None:
    """Register what runs in a forked child, before its recorder is reset."""
    _at_fork[name] = callback


def after_failure(callback: Callback) -> None:
    """Register what runs in the training thread when llmtop's work after a step has failed."""
    _after_failure.append(callback)


def run_at_end(name: EndName, recorder: Any, if_it_raises: bool) -> bool:
    """Run one callback of the end, guarded.

    Args:
        name: which; one that is not registered does nothing.
        recorder: of this process.
        if_it_raises: what to return then.

    Returns:
        False if something is left whose C++ destructors must not run.
    """
    callback = _at_end.get(name)
    return callback is None or run_alone(lambda: callback(recorder) is not False, otherwise=if_it_raises)


def run_at_fork(recorder: Any) -> None:
    """Run the callbacks of a forked child, each guarded."""

    def run(callback: Callback) -> None:
        run_alone(lambda: callback(recorder), otherwise=None)

    for name in _FORK_ORDER:
        callback = _at_fork.get(name)
        if callback is not None:
            run(callback)


def run_after_failure(recorder: Any) -> None:
    """Run the callbacks of a failure. What a signal's handler raises in one passes."""
    for callback in _after_failure:
        callback(recorder)

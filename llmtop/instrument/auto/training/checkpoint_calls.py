"""Which checkpoint a call writes, how long that takes, and when it is complete.

Calls lie in each other: a Trainer's checkpoint has several of `torch.save`. The outermost is the checkpoint.
Its path is its own argument, else the folder of the last file that was written within it. The training waits for
calls of its own thread alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.record.saved_checkpoints import Saved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from llmtop.instrument.auto.training.loop import Loop

WHAT = "the checkpoints"
ASYNC = "async_save"
_PATH_ARGUMENTS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "torch.save": (1, ("f",)),
    "save": (None, ("checkpoint_id", "storage_writer")),
    "async_save": (None, ("checkpoint_id", "storage_writer")),
    "_save_state_dict": (None, ("storage_writer",)),
    "save_file": (1, ("filename",)),
    "serialize_file": (1, ("filename",)),
    "save_state": (1, ("output_dir",)),
    "save_model": (2, ("save_directory",)),
    "save_checkpoint": (1, ("filepath",)),
}
"""Position and name of the path among the arguments, by function."""


class _Depth(threading.local):
    """How many of the calls are open in this thread, and the last path within the outermost."""

    open = 0
    path = ""


class CheckpointCalls:
    """Called around each function that writes a checkpoint."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._recorder = loop.recorder
        self._depth = _Depth()
        self._writing: set[int] = set()
        """When asynchronous checkpoints began that are not complete: another thread writes each, by `save`."""

    def enter(self, function: str) -> int:
        """Begin a call; returns when, by the monotonic clock in ns."""
        if not self._depth.open:
            self._depth.path = ""
        self._depth.open += 1
        began = perf_counter_ns()
        if function == ASYNC:
            self._writing.add(began)
        return began

    def give_up(self, began: int) -> None:
        """End a call that raised: nothing is complete."""
        self._depth.open -= 1
        self._writing.discard(began)

    def leave(self, function: str, began: int, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """End a call. Of the outermost, the checkpoint is complete now, or once the result's future is done.

        Args:
            function: its name.
            began: as `enter` returned it.
            result: of the call.
            args: of the call.
            kwargs: of the call.
        """
        depth = self._depth
        depth.open -= 1
        future = getattr(result, "upload_completion", result) if function == ASYNC else None
        add: Callable[[Callable[[Any], None]], None] | None = getattr(future, "add_done_callback", None)
        if add is None:
            self._writing.discard(began)
        else:
            add(lambda _: self._writing.discard(began))
        own = _path(function, args, kwargs)
        if depth.open:
            depth.path = own or depth.path
            return
        path = own or (os.path.dirname(depth.path) if depth.path else "")
        recorder, waits = self._recorder, self._loop.in_training_thread
        if not waits and self._writing:
            return
        if recorder.off or not recorder.attached or (not path and function == "torch.save"):
            return  # torch.save into memory is no checkpoint
        step, blocked = recorder.current_index(), perf_counter_ns() - began if waits else 0

        def complete(future: Any = None) -> None:
            try:
                if future is not None and (future.cancelled() or future.exception() is not None):
                    return
                now = perf_counter_ns()
                recorder.saved.add(Saved(step, now, now - began, blocked, path, function))
                recorder.wake_server()
            except BaseException as error:  # noqa: BLE001 - the door: in a thread of the script's
                report_internal_error(WHAT, error)

        if add is None:
            complete()
        else:
            add(complete)


def _path(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the absolute path among the arguments; "" without one."""
    place, names = _PATH_ARGUMENTS.get(function, (None, ()))
    found = args[place] if place is not None and len(args) > place else None
    for name in names:
        found = kwargs.get(name) if found is None else found
    if not isinstance(found, str | os.PathLike):
        found = getattr(found, "path", None) or getattr(found, "name", None)  # a storage writer, an open file
    if not isinstance(found, str | os.PathLike):
        return ""
    text = os.fspath(found)
    return os.path.abspath(text) if isinstance(text, str) and "://" not in text else ""

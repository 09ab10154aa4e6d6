"""A look at the training thread keeps nothing alive, not even while it reads a file that takes its time."""

from __future__ import annotations

import sys
import threading
import weakref

import pytest

from llmtop.instrument.serve.stacks import stack_words, waiting_calls
from llmtop.instrument.serve.stacks.stack_words import StackDescriber
from tests.support.processes import wait_for


class Held:
    """Stands for a tensor of a function's."""


class Function(threading.Thread):
    """A thread in a function that holds something, which returns when it may."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.may_end, self.is_there = threading.Event(), threading.Event()
        self.held: weakref.ref[Held] | None = None
        self.start()
        assert self.is_there.wait(240)
        wait_for(self._stands_at_the_gate, what="a thread in its last call")

    def _stands_at_the_gate(self) -> bool:
        frame = sys._current_frames()[self.ident or 0]
        last = max(line for _, _, line in frame.f_code.co_lines() if line is not None)
        return frame.f_code.co_name == "_holds" and frame.f_lineno == last

    def run(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        threading.Thread(target=lambda: (self.may_end.wait(240), gate.release()), daemon=True).start()
        self._holds(gate)

    def _holds(self, gate: threading.Lock) -> None:
        held = Held()
        self.held = weakref.ref(held)
        self.is_there.set()
        gate.acquire()


@pytest.mark.parametrize("asked", ["what it does", "whether it waits for its GPU"])
def test_what_a_function_held_goes_when_it_returns_though_its_source_is_being_read(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, left = Function(), []

    def slow(file: str, line: int, columns: slice) -> str:
        """A file system that answers when the script is long somewhere else."""
        function.may_end.set()
        function.join(240)
        left.append(function.held is not None and function.held() is not None)
        return ""

    monkeypatch.setattr(stack_words, "source", slow)
    monkeypatch.setattr(waiting_calls, "source", slow)
    describer, thread = StackDescriber(), function.ident
    assert thread is not None
    if asked == "what it does":
        seen = describer.describe(thread, 0)
        assert seen is not None
        assert seen.words.endswith("_holds()")
    else:
        assert describer.waits_for_gpu(thread, 0) == ""
    assert not function.is_alive()
    assert left == [False]

"""A thread within torch's wrapper of an optimizer's step, before the step or after it: no line of the script."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from llmtop.instrument.serve.stacks.stack_words import StackDescriber
from tests.support.processes import wait_for


def words_at(hook: Callable[..., object], is_there: Callable[[str], bool]) -> str:
    """Return what a sample says of a thread whose optimizer has that hook, once its innermost frame is there."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.register_step_post_hook(hook)

    def trains() -> None:
        optimizer.step()

    thread = threading.Thread(target=trains, daemon=True)
    thread.start()

    def innermost() -> str:
        frame = sys._current_frames().get(thread.ident or 0)
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_code.co_name}"

    wait_for(lambda: is_there(innermost()), what="the thread in the hook")
    seen = StackDescriber().describe(thread.ident or 0, 0)
    assert seen is not None
    return seen.words


@pytest.mark.slow("loads torch; test_the_words_have_the_range_or_the_call has lines without it")
def test_torch_s_wrapper_is_no_line_and_a_hook_of_the_script_is() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    released = threading.Event()
    with open(writing, "w") as pipe:
        # A hook of C that waits has no frame: the wrapper is innermost, as where it gives Python's lock up.
        blocks = functools.partial(print, file=pipe, flush=True)
        in_wrapper = words_at(blocks, lambda where: where.endswith("torch/optim/optimizer.py:wrapper"))
        while os.read(reading, 1 << 16).startswith(b"\0\0"):
            pass
    os.close(reading)
    assert in_wrapper == ""

    def waits(*_: object) -> None:
        released.wait(60)

    said = words_at(waits, lambda where: where.endswith("threading.py:wait"))
    released.set()
    assert said.startswith("test_around_optimizer.py:"), said
    assert said.endswith("released.wait(60)")

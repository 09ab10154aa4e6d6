"""What of a command's standard error a bench passes on, before and after it has interrupted the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmtop.bench.run import stderr_relay

OPENS = b'Traceback (most recent call last):\n  File "train.py", line 6, in <module>\n    step()\n'
ENDS = b"KeyboardInterrupt\n"


def passed_on(parts: list[bytes], *, is_interrupted: bool) -> bytes:
    """What the relay writes of what comes in these parts."""
    memory = os.memfd_create("last line")
    if is_interrupted:
        os.pwrite(memory, stderr_relay.INTERRUPTED, stderr_relay.LINE_BYTES)
    command = [sys.executable, "-I", "-S", stderr_relay.__file__, str(memory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(memory,), bufsize=0
    ) as relay:
        assert relay.stdin is not None
        assert relay.stderr is not None
        for part in parts:
            relay.stdin.write(part)
        relay.stdin.close()
        found = relay.stderr.read()
    os.close(memory)
    return found


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_traceback_of_the_interrupt_is_left_out_and_nothing_else(size: int) -> None:
    text = b"epoch 1\n" + OPENS + b"ValueError: 3\n" + OPENS + ENDS + b"bye\n"
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert passed_on(parts, is_interrupted=True) == text.replace(OPENS + ENDS, b"")
    assert passed_on(parts, is_interrupted=False) == text


def test_a_traceback_may_have_an_empty_line() -> None:
    """As Python 3.11 writes it where ctrl+c comes at the first line of a function of several lines."""
    within = OPENS + b'  File "train.py", line 3, in __init__\n    def __init__(\n\n'
    assert passed_on([within + ENDS + b"bye\n"], is_interrupted=True) == b"bye\n"
    assert passed_on([within + b"ValueError: 3\n"], is_interrupted=True) == within + b"ValueError: 3\n"


def test_what_is_cut_off_at_the_end_is_passed_on() -> None:
    assert passed_on([b"a\n" + OPENS], is_interrupted=True) == b"a\n" + OPENS
    assert passed_on([b"Trace"], is_interrupted=True) == b"Trace"

"""The door between llmtop and a training: what is llmtop's stays, what is the script's passes."""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

import llmtop
from llmtop.instrument import startup
from llmtop.instrument.guest import guard
from llmtop.instrument.record import open_phases, recorder
from llmtop.instrument.serve.hello import hello
from tests.support.recorded import Recorded


class Mine(Exception):
    """A script's own."""


def plain(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the script's")


def varied(*arguments: object) -> None:
    raise Mine


def nested(number: int, frame: FrameType | None) -> None:
    def raises() -> None:
        raise ValueError

    raises()


def resets(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise RuntimeError


class Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        raise ValueError

    def method(self, number: int, frame: FrameType | None) -> None:
        del frame
        raise ValueError


HANDLERS: dict[str, Callable[..., None]] = {
    "function": plain,
    "any arguments": varied,
    "calls others": nested,
    "takes itself away": resets,
    "object": Handler(),
    "method": Handler().method,
    "partial": functools.partial(lambda more, number, frame: 1 / 0, "more"),
}


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signals_handler_raises_within_our_lines_is_the_scripts(
    handler: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: open_phases.OpenPhases, here: object, name: str) -> None:
        signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, HANDLERS[handler])
    monkeypatch.setattr(open_phases.OpenPhases, "new_node", interrupted)
    with pytest.raises((TimeoutError, Mine, ValueError, RuntimeError, ZeroDivisionError)), llmtop.phase("first"):
        pass
    assert recorded.recorder.blind == {}


def test_what_another_thread_raises_within_our_lines_is_the_scripts(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: open_phases.OpenPhases, here: object, name: str) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Mine))
        for _ in range(1000):
            pass

    interrupted.__globals__["__name__"], name = "llmtop.stand_in", __name__
    monkeypatch.setattr(open_phases.OpenPhases, "new_node", interrupted)
    try:
        with pytest.raises(Mine), llmtop.phase("first"):
            pass
    finally:
        interrupted.__globals__["__name__"] = name
    assert recorded.recorder.blind == {}


@pytest.mark.parametrize("error", [RuntimeError("ours"), OSError(24, "too many"), StopIteration(), MemoryError()])
def test_what_is_ours_is_said_once_and_goes_no_further(
    error: Exception, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(open_phases.OpenPhases, "new_node", fails)
    for _ in range(3):
        with llmtop.step(), llmtop.phase("first"):
            pass
    assert len(recorded.steps) == 3
    note = hello(recorded.recorder, startup.controls()).note
    assert note is not None
    assert note.count("llmtop cannot see some phases") == 1
    assert type(error).__name__ in note


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_script_passes(
    error: type[BaseException], recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise error

    monkeypatch.setattr(open_phases.OpenPhases, "new_node", interrupted)
    with pytest.raises(error), llmtop.phase("first"):
        pass


def test_an_error_without_a_text_is_noted_all_the_same(recorded: Recorded) -> None:
    class Speechless(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    try:
        raise Speechless
    except Speechless as error:
        guard.report_internal_error("something", error)
    assert recorder.get() is recorded.recorder

"""When CUPTI is asked to leave a process after a recording, and when a next one has to wait for that."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.instrument.control import cupti, recordings


def torch_with(cuda: str | None, initialized: bool = True) -> Any:
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda), cuda=SimpleNamespace(is_initialized=lambda: initialized)
    )


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Variables of this test alone; before it and after it, the last recording ended long ago."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.delenv(cupti.WORD, raising=False)
    now = float("-inf")
    monkeypatch.setattr(cupti, "time", SimpleNamespace(monotonic=lambda: now))
    cupti.end_recording(lambda: None)
    now = 100.0
    yield monkeypatch
    now = float("-inf")
    cupti.end_recording(lambda: None)


@pytest.mark.parametrize(
    ("cuda", "said", "then"),
    [
        ("12.6", None, "1"),
        ("13.0", None, "1"),
        ("12.4", None, None),  # there a second recording can crash a process with CUDA graphs
        (None, None, None),
        ("odd", None, None),
        ("13.0", "0", "0"),  # the user's word, or torch.compile's for CUDA graphs
    ],
)
def test_it_is_asked_for_where_it_is_safe_and_nobody_has_said_otherwise(
    cuda: str | None, said: str | None, then: str | None, variables: pytest.MonkeyPatch
) -> None:
    if said is not None:
        variables.setenv(cupti.WORD, said)
    cupti.leave_when_done(torch_with(cuda))
    assert os.environ.get(cupti.WORD) == then


def test_the_next_recording_waits_until_it_has_left(variables: pytest.MonkeyPatch) -> None:
    torch = torch_with("13.0")
    cupti.leave_when_done(torch)
    assert not cupti.is_leaving(torch)
    cupti.end_recording(lambda: None)
    assert cupti.is_leaving(torch)
    variables.setitem(sys.modules, "torch", torch)
    variables.setattr(recordings.cupti, "is_leaving", lambda torch: True)
    assert "try again in two seconds" in recordings.TorchProfiler.refusal()


def test_without_a_gpu_in_use_nothing_leaves_and_nobody_waits(variables: pytest.MonkeyPatch) -> None:
    torch = torch_with("13.0", initialized=False)
    cupti.leave_when_done(torch)
    cupti.end_recording(lambda: None)
    assert not cupti.is_leaving(torch)


def waiting_thread(go_on: threading.Event) -> None:
    """As PyTorch has one: none of those that Python lists, with the name of the thread that began it."""
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(60)

    _thread.start_new_thread(wait, ())
    assert begun.wait(60)


def test_before_the_next_recording_cuda_is_called_until_no_thread_waits(variables: pytest.MonkeyPatch) -> None:
    variables.setattr(cupti, "time", time)
    variables.setattr(cupti, "AT_MOST_SECONDS", 60.0)
    go_on, called = threading.Event(), 0

    def query() -> bool:
        nonlocal called
        called += 1
        if called == 3:
            go_on.set()
        return True

    torch = torch_with("13.0")
    torch.cuda.current_stream = lambda: SimpleNamespace(query=query)
    cupti.check_has_left(torch)
    assert called == 0, "no recording has ended"
    cupti.end_recording(lambda: waiting_thread(go_on))
    cupti.check_has_left(torch)
    assert called >= 3
    called = 4
    cupti.check_has_left(torch)
    assert called == 4, "none waits any more"


def test_a_thread_that_waits_all_the_same_refuses_the_next_recording(variables: pytest.MonkeyPatch) -> None:
    variables.setattr(cupti, "time", time)
    variables.setattr(cupti, "AT_MOST_SECONDS", 0.05)
    go_on, torch = threading.Event(), torch_with("13.0")
    cupti.end_recording(lambda: waiting_thread(go_on))
    with pytest.raises(RuntimeError, match="try again after some steps"):
        cupti.check_has_left(torch)
    go_on.set()

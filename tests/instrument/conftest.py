"""A recorder that is fresh for each test and reaches no socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmtop.instrument import startup
from llmtop.instrument.record.recorder import get
from tests.support.recorded import Recorded


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(startup, "start", lambda _: None)  # no server: these tests look at the ring
    recorder = get()
    recorder.reset()
    yield Recorded()
    recorder.reset()

"""Fixtures of the collectors' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import collectors.hub
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import Driver
from tests.support.pages import Serve, servers


@pytest.fixture
def source(nvml_stub: Driver) -> Iterator[OwnSource]:
    """A source over the stand-in that samples ten times a second; the test starts it."""
    source = OwnSource(0.1)
    yield source
    source.close()


@pytest.fixture
def patient_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hub wait for the first values for as long as a test on a busy machine may need to bring them."""
    monkeypatch.setattr(collectors.hub, "FIRST_SECONDS", 60.0)
    monkeypatch.setattr(collectors.hub, "ONCE_SECONDS", 60.0)
    monkeypatch.setattr(collectors.hub, "DRIVER_SECONDS", 60.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that gives a page, and say where."""
    with servers() as start:
        yield start

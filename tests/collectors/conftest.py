"""Fixtures of the collectors' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
def serve() -> Iterator[Serve]:
    """Start a server that gives a page, and say where."""
    with servers() as start:
        yield start

"""Fixtures of the tests of NVML's source."""

from __future__ import annotations

import pytest

import collectors.nvml.device


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop no value because this machine is busy: a test that plants a hang sets a shorter limit."""
    monkeypatch.setattr(collectors.nvml.device, "STALE_SECONDS", 30.0)

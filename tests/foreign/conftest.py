"""The slow ones run when they are asked for: ``-m slow``, ``-m "slow or not slow"``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip them, where no expression speaks of them."""
    if "slow" in (config.getoption("markexpr") or ""):
        return
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"slow ({marker.kwargs['why']}): run with -m slow"))

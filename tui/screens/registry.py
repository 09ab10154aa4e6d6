"""Screens by the name of their class. A screen is imported when it is first opened."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SCREENS = {
    "AlertScreen": "tui.screens.alert",
    "CaptureScreen": "tui.screens.capture",
    "CapturesScreen": "tui.screens.captures",
    "DemoEndScreen": "tui.screens.demo_end",
    "FlameScreen": "tui.screens.flame",
    "GpuScreen": "tui.screens.gpu",
    "HangScreen": "tui.screens.hang",
    "HelpScreen": "tui.screens.help",
    "KernelsScreen": "tui.screens.kernels",
    "MemoryScreen": "tui.screens.memory",
    "ProcessesScreen": "tui.screens.processes",
    "RanksScreen": "tui.screens.ranks",
    "RepeatScreen": "tui.screens.capture",
    "ReportScreen": "tui.screens.report",
    "StacksScreen": "tui.screens.stacks",
}
"""Class of a screen -> its module."""


def screen_class(name: str) -> Any:
    """Return the class of a screen, importing its module.

    Raises:
        KeyError: `SCREENS` has no such screen.
    """
    return getattr(import_module(SCREENS[name]), name)

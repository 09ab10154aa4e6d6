"""Base of the monitor's text screens, which scroll."""

from __future__ import annotations

from tui.core.scrolling import Scrolling
from tui.screens.base import LlmtopScreen


class ScrollingScreen(LlmtopScreen, Scrolling):
    """Shows `lines()` between the monitor's header and footer; see `Scrolling`."""

"""What a screen may ask of the app: the view, how to draw, and to open or leave a screen."""

from __future__ import annotations

from typing import Any

from tui.base_app import TerminalApp
from tui.view import View


class ScreenContext(TerminalApp):
    """The app as its screens know it; `tui.app.LlmtopApp` is the one there is."""

    view: View
    """Newest snapshot, history, and what the person chose."""

    @property
    def replaying(self) -> bool:
        """Whether a recording is shown."""
        raise NotImplementedError

    def open_screen(self, name: str, *arguments: Any) -> None:
        """Put a screen on top.

        Args:
            name: "module:Class" below `tui.screens`, as tui/keys.py has it.
            arguments: for the class.
        """
        raise NotImplementedError

    def action_span(self, step: int) -> None:
        """Have all charts cover the next longer span of time, or the next shorter one where `step` is negative."""
        raise NotImplementedError

    async def action_back(self) -> None:
        """Leave the screen on top."""
        raise NotImplementedError

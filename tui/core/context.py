"""Interface of the app for screens: the view, how to draw, and to open or leave a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tui.core.base_app import TerminalApp
from tui.state.view import View

if TYPE_CHECKING:
    from llmtop.capture.prepared import PreparedCaptures


class ScreenContext(TerminalApp):
    """The app as its screens know it; `tui.app.LlmtopApp` is the one there is."""

    view: View
    """Newest snapshot, history, and what the person chose."""
    prepared: PreparedCaptures | None = None
    """Captures that the demo opens in place of taking some."""

    def open_screen(self, name: str, *arguments: Any) -> None:
        """Open a screen on top.

        Args:
            name: class of the screen, as in `tui.screens.registry`.
            arguments: for the class.
        """
        raise NotImplementedError

    def action_span(self, step: int) -> None:
        """Set all charts to the next longer span of time, or the next shorter one where `step` is negative."""
        raise NotImplementedError

    def action_first(self) -> None:
        """Show the oldest that is known; in a replay the beginning of the recording."""
        raise NotImplementedError

    async def action_back(self) -> None:
        """Leave the screen on top."""
        raise NotImplementedError

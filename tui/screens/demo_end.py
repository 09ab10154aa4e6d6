"""Screen at the end of the demo: the content of its recording, and how to watch one's own training."""

from __future__ import annotations

import math
from textwrap import wrap

from tui.core import keys
from tui.paint import alert_style
from tui.paint.rows import Row, pad
from tui.screens.scrolling import ScrollingScreen

_OWN = (
    ("llmtop run -- python train.py", "your training, attached"),
    ("llmtop", "this screen, in a new pane"),
    ("llmtop doctor", "what can be captured"),
)
_MOST = 5
"""Most alerts listed."""


class DemoEndScreen(ScrollingScreen):
    """Shown once the recording has been played, and on its key before that."""

    NAME = keys.DEMO_END
    CSS_PATH = "report.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._at_end = False

    def on_mount(self) -> None:
        """Store that the recording has ended: when it begins anew, this screen closes."""
        self._at_end = self.view.ended

    def redraw(self) -> None:
        """Show it, unless the recording has been begun again."""
        super().redraw()
        if self._at_end and not self.view.ended:
            self._at_end = False
            self.app.call_later(self.llmtop.action_back)

    def lines(self, width: int) -> list[Row]:
        """Return the rows of the next actions, then those of the alerts shown."""
        palette = self.cell_theme.palette
        title = "The recording has ended" if self.view.ended else "The recording continues in the background"
        rows = [Row(width).add(f" {title}", palette.strong), Row(width)]
        rows.append(Row(width).add(" Next, a training of your own", palette.strong))
        room = max(len(command) for command, _ in _OWN)
        for command, does in _OWN:
            rows.append(Row(width).add(f"   {pad(command, room)}", palette.code).add(f"  {does}", palette.dim))
        rows.append(Row(width))
        return [*rows, *self._captured_rows(width), Row(width), *self._alert_summary(width)]

    def _captured_rows(self, width: int) -> list[Row]:
        """Return how far the person came with the captures."""
        palette, prepared = self.cell_theme.palette, self.llmtop.prepared
        from llmtop.capture.prepared import FIXED, STARVED

        taken = () if prepared is None else prepared.taken
        if STARVED in taken and FIXED in taken:
            said = "You captured the training before and after its fix. Press o for the list, then v to compare."
        elif taken:
            said = (
                "You took one capture. Press c and enter to capture the training after its fix; "
                "then o and v to compare."
            )
        else:
            said = "Press space to play the demo again; at INPUT-BOUND press c and enter, twice, then o and v."
        return [Row(width).add(f" {line}", palette.text) for line in wrap(said, max(width - 2, 20))]

    def _alert_summary(self, width: int) -> list[Row]:
        """Return the alerts of the recording, the first to come first."""
        palette, alerts = self.cell_theme.palette, self.view.alerts
        begun = alerts.since
        told = [one for one in reversed(alerts.ended_alerts(math.inf)) if alert_style.alert_rank(one.alert) > 0]
        now = self.view.snapshot
        holding = [] if now is None else [one for one in now.alerts if alert_style.alert_rank(one) > 0]
        if begun is None or not (told or holding):
            return []
        rows = [Row(width).add(" What the demo showed", palette.strong)]
        whole = [*((one.alert, one.until) for one in told), *((one, None) for one in holding)]
        seen = sorted(whole, key=lambda pair: pair[0].since)
        for alert, until in seen[:_MOST]:
            row = Row(width).add(f"   {_clock(alert.since - begun)}  ", palette.dim)
            row.add(pad(alert_style.alert_word(alert), 16), alert_style.ink(alert, self.cell_theme))
            lasted = alert_style.duration_text(alert, until or (alert.since if now is None else now.time))
            rows.append(
                row.add(f" for {pad(lasted, 8)}", palette.text).add(alert_style.title(alert)[2:], palette.dim)
            )
        if len(seen) > _MOST:
            rows.append(Row(width).add(f"   and {len(seen) - _MOST} more: a", palette.dim))
        return rows

    def command(self) -> str:
        """Return the command that starts one's own training."""
        return _OWN[0][0]

    async def action_again(self) -> None:
        """Play the recording from its beginning."""
        self._at_end = False
        await self.llmtop.action_back()
        self.llmtop.action_first()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(int(seconds), 0), 60)
    return f"{minutes:02d}:{rest:02d}"

"""All keys, made from the table of keys, and how to read the screen."""

from __future__ import annotations

from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from tui import keys
from tui.paint.rows import Row, pad
from tui.screens.scrolling import ScrollingScreen

_READING = (
    ("util", "Share of time in which a kernel ran. 100 % does not mean that the GPU works: look at power and SM."),
    ("power", "Draw against the limit. A training at full util far below its limit computes little, or waits."),
    (
        "SM",
        "Share of the multiprocessors that had work; tensor: their matrix units; DRAM: memory bandwidth in use.",
    ),
    (
        "host, GPU",
        "Two clocks. CUDA is asynchronous: the host's time of a phase may be waiting for an earlier one.",
    ),
    (
        "interval",
        "From the start of one step to the start of the next: the gap between them is in it, and not in 'took'.",
    ),
    (
        "charts",
        "Every axis is fixed, from 0 to 100 % or to the limit; a blank is a sample that the driver did not give.",
    ),
    (fmt.DASH, "The driver or the training does not tell this value."),
    ("red, amber", "Alerts only. They also have a word, a heavy frame and a sign, so colour is never needed."),
)


class HelpScreen(ScrollingScreen):
    """Keys and reading, in columns as the width allows; scrolls."""

    NAME = keys.HELP
    CSS_PATH = "help.tcss"
    MARGIN = 1

    def lines(self, width: int) -> list[Row]:
        """Paint the keys, then how to read the screen."""
        palette = self.look.palette
        rows: list[Row] = []
        notes = () if self.view.snapshot is None else self.view.snapshot.host.notes
        if notes:
            rows.append(Row(width).add("What this machine does not show", palette.strong))
            for note in notes:
                self._entry(rows, "", fmt.printable(note), width, palette.text)
            rows.append(Row(width))
        for title, group in keys.groups(replaying=self.llmtop.replaying):
            rows.append(Row(width).add(f"Keys {title}", palette.strong))
            for key in group:
                self._entry(rows, key.shown, key.help, width, palette.key)
            rows.append(Row(width))
        rows.append(Row(width).add("Reading the screen", palette.strong))
        for name, text in _READING:
            self._entry(rows, name, text, width, palette.text)
        return rows

    def _entry(self, rows: list[Row], name: str, text: str, width: int, style: Style) -> None:
        palette = self.look.palette
        for index, line in enumerate(wrap(text, max(width - 16, 12))):
            row = Row(width).add("  ", palette.text)
            row.add(
                pad(name if index == 0 else "", 13),
                Style(color=style.color, bold=True, bgcolor=palette.text.bgcolor),
            )
            rows.append(row.add(" " + line, palette.text))

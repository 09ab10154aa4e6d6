"""All keys, made from the table of keys, and how to read the screen."""

from __future__ import annotations

from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.naming.own_phases import DATALOAD, OUTSIDE
from tui.core import keys
from tui.paint.rows import Row, pad
from tui.panes import phase_bars
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


_SIGNS = (
    (
        "critical",
        "A critical alert or a warning; the word beside it says which, and the frame of its GPU is heavy.",
    ),
    ("info", "A note: worth a word, nothing to do."),
    ("selected", "What the keys act on: the selected GPU, rank, process, finding or alert."),
    ("more", "There is more below; less above."),
    ("arrow", "What to do next; before it and after it where something changed."),
    ("capture", "A capture, on the time line."),
    ("gauge_full", "For how long an alert held, on the time line; how far a capture is."),
    ("shade", "Time in which the GPU had nothing to do."),
)
_MARKS = (
    ("~", "An estimate."),
    ("≥ ≤", "At least, at most: only a bound is known."),
    ("…", "Cut here for want of room; a larger window, or enter, shows all of it."),
)
_PHASES = ("forward", "backward", "h2d", "optimizer", DATALOAD, "allreduce", "sync", "checkpoint", OUTSIDE)
"""Phases that most trainings have: each has its colour, pattern and letter wherever it is drawn."""
_TWO_COLUMNS = 110
"""Columns from which on the text stands in two."""


class HelpScreen(ScrollingScreen):
    """Keys, signs and how to read the screen, in two columns where there is room; pgup and pgdn go by pages."""

    NAME = keys.HELP
    CSS_PATH = "help.tcss"
    MARGIN = 1

    def lines(self, width: int) -> list[Row]:
        """Paint the keys, the signs, then how to read the screen."""
        if width < _TWO_COLUMNS:
            return [row for block in self._blocks(width) for row in block]
        each = (width - 3) // 2
        blocks = self._blocks(each)
        total, left, count = sum(map(len, blocks)), [], 0
        while blocks and count + len(blocks[0]) / 2 <= total / 2:
            count += len(blocks[0])
            left += blocks.pop(0)
        right = [row for block in blocks for row in block]
        rows = []
        for index in range(max(len(left), len(right))):
            row = Row(width)
            if index < len(left):
                row.join(left[index])
            row.fill_to(each + 3, self.cell_theme.palette.text)
            rows.append(row.join(right[index]) if index < len(right) else row)
        return rows

    def _blocks(self, width: int) -> list[list[Row]]:
        """Every part of the help, each with its title and a blank line below it."""
        palette = self.cell_theme.palette
        notes = () if self.view.snapshot is None else self.view.snapshot.host.notes
        parts: list[tuple[str, list[tuple[str, str, Style]]]] = []
        if notes:
            said = [("", fmt.printable(note), palette.text) for note in notes]
            parts.append(("What this machine does not show", said))
        groups = [
            (f"Keys {title}", [(key.shown, key.help, palette.key) for key in group])
            for title, group in keys.groups(replaying=self.llmtop.replaying, demo=self.view.demo)
        ]
        parts += groups[:2]
        parts.append(("Signs", self._signs()))
        blocks = [self._block(title, entries, width) for title, entries in parts]
        blocks.append(self._phases(width))
        parts = [("Reading the screen", [(name, text, palette.text) for name, text in _READING]), *groups[2:]]
        return [*blocks, *(self._block(title, entries, width) for title, entries in parts)]

    def _block(self, title: str, entries: list[tuple[str, str, Style]], width: int) -> list[Row]:
        rows = [Row(width).add(title, self.cell_theme.palette.strong)]
        for name, text, style in entries:
            self._entry(rows, name, text, width, style)
        return [*rows, Row(width)]

    def _signs(self) -> list[tuple[str, str, Style]]:
        theme = self.cell_theme
        styles = {"critical": theme.palette.critical, "info": theme.palette.info}
        signs = [
            (getattr(theme.glyphs, name), text, styles.get(name, theme.palette.text)) for name, text in _SIGNS
        ]
        return [*signs, *((mark, text, theme.palette.text) for mark, text in _MARKS)]

    def _phases(self, width: int) -> list[Row]:
        """A stretch of a bar for each of the usual phases; others take the colours and letters that are free."""
        theme, palette = self.cell_theme, self.cell_theme.palette
        colors = phase_bars.colors_of(_PHASES[:-1])
        letters = phase_bars.letters(_PHASES)
        rows = [Row(width).add("Phases of a step, by colour, pattern and letter", palette.strong)]
        for name in _PHASES:
            row = Row(width).add("  ", palette.text)
            phase_bars.block(row, letters[name], 6, colors.get(name, phase_bars.REST), theme)
            text = f"{name}: in no phase" if name == OUTSIDE else name
            rows.append(row.fill_to(16, palette.text).add(text, palette.text))
        return [*rows, Row(width)]

    def _entry(self, rows: list[Row], name: str, text: str, width: int, style: Style) -> None:
        palette = self.cell_theme.palette
        for index, line in enumerate(wrap(text, max(width - 16, 12))):
            row = Row(width).add("  ", palette.text)
            row.add(
                pad(name if index == 0 else "", 13),
                Style(color=style.color, bold=True, bgcolor=palette.text.bgcolor),
            )
            rows.append(row.add(" " + line, palette.text))

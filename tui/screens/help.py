"""The keys of the screen that the help was called from, then how to read it; made from the table of keys."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.style import Style

from llmtop import format as fmt
from llmtop.naming.own_phases import DATALOAD, OUTSIDE
from tui.core import keys
from tui.core.key_lookup import own_and_shared, title_of
from tui.core.keys import Key
from tui.paint.gpu_metrics import Hue
from tui.paint.rows import CellTheme, Row, pad
from tui.panes import phase_bars
from tui.screens.scrolling import ScrollingScreen

READING = (
    ("util", "Share of time in which a kernel ran. 100 % does not mean that the GPU works: see power and SM."),
    (
        "power",
        "Power draw against the power limit. A training at full util far below its limit computes little, or "
        "waits.",
    ),
    (
        "SM",
        "Share of the multiprocessors with work. tensor: share of their matrix units; DRAM: share of the memory "
        "bandwidth.",
    ),
    (
        "host, GPU",
        "Times by two clocks. CUDA is asynchronous: the host time of a phase may be a wait for an earlier phase.",
    ),
    ("interval", "From the start of a step to the start of the next, with the gap between them."),
    (
        "charts",
        "Each chart has its scale at its right end; ↑ marks values above the scale. A blank is a missing sample, "
        "a brighter cell a short peak or dip.",
    ),
    (fmt.DASH, "The driver or the training does not report this value."),
    ("red, amber", "Colors of alerts only. Each alert also has a word and a shape, so color is never needed."),
)
"""Legend of the screen: names and texts."""
_OF_GPUS = ("util", "power", "SM")
SIGNS = (
    ("critical", "CRITICAL: an alert that needs attention now; the GPU's row and frame have the same sign."),
    ("warning", "WARNING: an alert that costs time or may become critical."),
    ("info", "INFO: a note; no action needed."),
    ("selected", "What the keys act on: the selected GPU, rank, process, finding or alert."),
    ("more", "More lines follow below or above; scroll to see them."),
    ("arrow", "Before a text: what to do next. Between two values: before and after a change."),
    ("capture", "On the time line: a capture was taken at this time."),
    ("gauge_full", "On the time line: how long an alert held. In the capture dialog: the progress."),
    ("shade", "In a timeline of a step: time in which the GPU was idle."),
)
"""Legend of the signs: names of glyphs, and texts."""
MARKS = (
    ("~", "An estimate."),
    ("≥ ≤", "At least, at most: only a bound is known."),
    ("…", "The text is cut here; a larger window, or enter, shows all of it."),
)
"""Legend of the marks."""
_HUES: tuple[tuple[Hue, str, str], ...] = (
    ("compute", "charts of work: utilization, SM, steps, tokens", "charts of steps and tokens"),
    ("energy", "charts of power, temperature, clock, CPU", "charts of the CPU"),
    ("transfer", "charts of memory, transfers, logged values", "charts of memory, transfers, logged values"),
)
"""Hue of a chart, what is drawn in it, and that on a machine without a GPU."""
_DRAWN = (keys.MAIN, keys.GPU, keys.RANKS)
"""Screens that draw signs, phases and charts."""
_TWO_PHASES = 44
"""Columns from which on two phases stand side by side."""
_PHASES = ("forward", "backward", "h2d", "optimizer", DATALOAD, "allreduce", "sync", "checkpoint", OUTSIDE)
"""Phases that most trainings have: each has its colour, pattern and letter wherever it is drawn."""
_TWO_COLUMNS = 110
"""Columns from which on the text stands in two."""


class HelpScreen(ScrollingScreen):
    """Keys, signs and how to read one screen, in two columns where there is room."""

    NAME = keys.HELP
    CSS_PATH = "help.tcss"
    MARGIN = 1

    def __init__(self, about: str = keys.MAIN) -> None:
        """Explain a screen.

        Args:
            about: its `NAME`.
        """
        super().__init__()
        self._about = about

    def lines(self, width: int) -> list[Row]:
        """Paint the keys of that screen, then those of every screen, then the signs and how to read it."""
        if width < _TWO_COLUMNS:
            return [row for block in self._blocks(width) for row in block]
        each = (width - 3) // 2
        return in_two_columns(self._blocks(each), width, each, self.cell_theme)

    def _blocks(self, width: int) -> list[list[Row]]:
        """Return every part of the help, each with its title and a blank line below it."""
        theme, palette = self.cell_theme, self.cell_theme.palette
        own, shared = own_and_shared(
            self._about, replaying=self.llmtop.replaying, demo=self.view.demo, gpus=self.has_gpus()
        )
        blocks = key_blocks(self._about, own, shared, width, theme)
        if self._about in _DRAWN:
            blocks.append(block("Signs", _signs(theme), width, theme))
            blocks.append([*_phases(width, theme), *_hues(width, theme, gpus=self.has_gpus()), Row(width)])
            reading = [one for one in READING if self.has_gpus() or one[0] not in _OF_GPUS]
            texts = [(name, text, palette.text) for name, text in reading]
            blocks.append(block("Reading the screen", texts, width, theme))
        notes = () if self.view.snapshot is None else self.view.snapshot.host.notes
        if notes and self._about == keys.MAIN:
            said = [("", fmt.printable(note), palette.text) for note in notes]
            blocks.append(block("What this machine does not show", said, width, theme))
        return blocks


def key_blocks(
    about: str, own: Sequence[Key], shared: Sequence[Key], width: int, theme: CellTheme
) -> list[list[Row]]:
    """Return the keys of one screen, then those that other screens have too.

    Args:
        about: `NAME` of the screen.
        own: its own keys.
        shared: the others that work there.
        width: cells.
        theme: colours and glyphs of this terminal.
    """
    style = theme.palette.key
    parts = [(f"Keys on {title_of(about)}", own), ("Keys on every screen", shared)]
    return [
        block(title, [(key.shown, key.help, style) for key in group], width, theme)
        for title, group in parts
        if group
    ]


def in_two_columns(blocks: list[list[Row]], width: int, each: int, theme: CellTheme) -> list[Row]:
    """Blocks side by side, about as many lines at the left as at the right; each is `each` cells wide."""
    blocks = list(blocks)
    total, left, count = sum(map(len, blocks)), list[Row](), 0
    while blocks and count + len(blocks[0]) / 2 <= total / 2:
        count += len(blocks[0])
        left += blocks.pop(0)
    right = [row for part in blocks for row in part]
    rows = []
    for index in range(max(len(left), len(right))):
        row = Row(width)
        if index < len(left):
            row.join(left[index])
        row.fill_to(each + 3, theme.palette.text)
        rows.append(row.join(right[index]) if index < len(right) else row)
    return rows


def block(title: str, entries: Sequence[tuple[str, str, Style]], width: int, theme: CellTheme) -> list[Row]:
    """Return a title, an entry each with its name, its text and the style of the name, and a blank line."""
    rows = [Row(width).add(title, theme.palette.strong)]
    for name, text, style in entries:
        bold = Style(color=style.color, bold=True, bgcolor=theme.palette.text.bgcolor)
        for index, line in enumerate(wrap(text, max(width - 14, 12))):
            row = Row(width).add("  ", theme.palette.text).add(pad(name if index == 0 else "", 11), bold)
            rows.append(row.add(" " + line, theme.palette.text))
    return [*rows, Row(width)]


def _signs(theme: CellTheme) -> list[tuple[str, str, Style]]:
    styles = {
        "critical": theme.palette.critical, "warning": theme.palette.warning, "info": theme.palette.info
    }  # fmt: skip
    signs = [(getattr(theme.glyphs, name), text, styles.get(name, theme.palette.text)) for name, text in SIGNS]
    return [*signs, *((mark, text, theme.palette.text) for mark, text in MARKS)]


def _hues(width: int, theme: CellTheme, *, gpus: bool) -> list[Row]:
    """Return a stretch of each hue of the charts with what is drawn in it; nothing where all hues are equal."""
    palette = theme.palette
    styles = [getattr(palette, hue) for hue, _, _ in _HUES]
    if styles[0] == styles[1]:
        return []
    rows = []
    for style, (_, text, without_gpu) in zip(styles, _HUES, strict=True):
        row = Row(width).add("  ", palette.text).add(theme.glyphs.levels[-1] * 6, style)
        rows.append(row.add(f"  {text if gpus else without_gpu}", palette.text))
    return rows


def _phases(width: int, theme: CellTheme) -> list[Row]:
    """Return a stretch of a bar for each of the usual phases; others take the colours and letters that are
    free."""
    palette = theme.palette
    colors = phase_bars.colors_of(_PHASES[:-1])
    letters = phase_bars.letters(_PHASES)
    rows = [Row(width).add("Colors: phases of a step, with pattern and letter; charts", palette.strong)]
    across = 2 if width >= _TWO_PHASES else 1
    for start in range(0, len(_PHASES), across):
        row = Row(width)
        for number, name in enumerate(_PHASES[start : start + across]):
            row.fill_to(number * (width // across), palette.text).add("  ", palette.text)
            phase_bars.block(row, letters[name], 6, colors.get(name, phase_bars.REST), theme)
            text = f"{name}: in no phase" if name == OUTSIDE else name
            row.add("  " + text, palette.text)
        rows.append(row)
    return rows

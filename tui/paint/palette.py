"""Colours: themes, and the table of styles that every painter draws with, built once a theme.

Hues have meanings: blue is computing, green is energy and what follows from it, violet is bytes on the move. Amber
and red are kept for alerts, so a healthy GPU at 100 % is never painted in a colour of alarm. At 16 colours the
terminal's own are used; without colour only bold, dim, reverse and underline, and none of them carries information
by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from msgspec import Struct
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

Depth = Literal["full", "256", "16", "mono"]

THEMES: tuple[Theme, ...] = (
    Theme(
        name="llmtop-dark",
        primary="#6cb0f2",
        secondary="#4f7fb0",
        accent="#b79cf0",
        warning="#f0b13c",
        error="#f0484f",
        success="#7fc98b",
        foreground="#d5dce6",
        background="#10141a",
        surface="#161c24",
        panel="#1b232d",
    ),
    Theme(
        name="llmtop-light",
        primary="#1766b3",
        secondary="#5c8fc4",
        accent="#7446b8",
        warning="#a86200",
        error="#c4161f",
        success="#267d3a",
        foreground="#1d2530",
        background="#fafbfc",
        surface="#f0f3f6",
        panel="#e6ebf0",
        dark=False,
    ),
    Theme(
        name="llmtop-contrast",
        primary="#5fd7ff",
        secondary="#00afff",
        accent="#d7afff",
        warning="#ffd700",
        error="#ff2b2b",
        success="#5fff87",
        foreground="#ffffff",
        background="#000000",
        surface="#101010",
        panel="#1c1c1c",
    ),
    replace(
        BUILTIN_THEMES["ansi-dark"], name="llmtop-terminal", primary="ansi_bright_blue", accent="ansi_magenta"
    ),
)
"""The key that changes the theme goes round these; the palette of commands has Textual's as well."""

TERMINAL_THEME = "llmtop-terminal"
"""The terminal's own colours and background: the only theme at 16 colours and without colour."""

# Neighbours in a step differ by 12 (CIEDE2000) to all eyes, those without red or green receptors among them;
# tests/tui/paint/test_colours.py reckons it.
# By role: compute, backward, h2d, optimizer, input, comm, sync, others.
_PHASES_DARK = ("#7faff1", "#63e1bd", "#9661e0", "#a7d962", "#d177ab", "#86e1ea", "#9d9743", "#7b7f88")
_PHASES_LIGHT = ("#0c256e", "#1a8261", "#5c24cd", "#3f5228", "#a75c8b", "#2b4650", "#72722f", "#5c6166")
_PHASES_16 = ("bright_blue", "cyan", "magenta", "green", "white", "bright_cyan", "bright_green", "bright_white")


class Palette(Struct, frozen=True):
    """Styles that a painter may use."""

    name: str
    depth: Depth
    text: Style
    strong: Style
    dim: Style
    """Labels."""
    faint: Style
    """Frames, axes: what may be overlooked."""
    header: Style
    header_dim: Style
    header_strong: Style
    compute: Style
    energy: Style
    transfer: Style
    """Histories, by what they are of; softer than text, so that a full one does not shout."""
    compute_line: Style
    energy_line: Style
    transfer_line: Style
    """The same for thin lines, which need more contrast."""
    compute_area: Style
    energy_area: Style
    transfer_area: Style
    """The same for histories several rows high: large surfaces are softer still."""
    code: Style
    """Style of text that can be typed."""
    selected: Style
    """The frame and number of the selected GPU."""
    cursor: Style
    """The chosen line of a list."""
    info: Style
    warning: Style
    critical: Style
    warning_badge: Style
    critical_badge: Style
    """Reversed in red: the one thing to be seen from across the room."""
    mark: Style
    """REPLAY, PAUSED."""
    key: Style
    key_label: Style
    phases: tuple[Style, ...]
    """The patterns of phases, by colour of the letters."""
    phase_bars: tuple[Style, ...]
    """The same as background, with letters that can be read on it."""
    rest: Style
    """Part of a bar in no phase."""

    @classmethod
    def build(cls, theme: Theme, depth: Depth) -> Palette:
        """Return the table for a theme at what the terminal can show."""
        if depth == "mono":
            return _mono()
        if depth == "16" or theme.ansi:
            return _sixteen(theme.name)
        return _full(theme, depth)


def _full(theme: Theme, depth: Depth) -> Palette:
    generated = theme.to_color_system().generate()
    background = Color.parse(generated["background"])
    foreground = Color.parse(generated["foreground"])
    panel = Color.parse(generated["panel"])
    if depth == "256":
        # The colour cube has no dark blues between black and navy; its greys have every step.
        panel = Color.parse("#303030" if theme.dark else "#dadada")
    primary, accent = Color.parse(generated["primary"]), Color.parse(generated["accent"])
    success, warning = Color.parse(generated["success"]), Color.parse(generated["warning"])
    error = Color.parse(generated["error"])

    def style_on(color: Color, ground: Color = background, *, bold: bool = False) -> Style:
        return Style(color=color.rich_color, bgcolor=ground.rich_color, bold=bold or None)

    def towards(color: Color, share: float) -> Color:
        return background.blend(color, share)

    def badge(color: Color) -> Style:
        return style_on(color.get_contrast_text(1.0), color, bold=True)

    phases = [Color.parse(code) for code in (_PHASES_DARK if theme.dark else _PHASES_LIGHT)]
    dark_ink, light_ink = Color.parse("#0c1016"), Color.parse("#ffffff")
    return Palette(
        name=theme.name,
        depth=depth,
        text=style_on(towards(foreground, 0.92)),
        strong=style_on(foreground, bold=True),
        dim=style_on(towards(foreground, 0.58)),
        faint=style_on(towards(foreground, 0.26)),
        header=style_on(towards(foreground, 0.88), panel),
        header_dim=style_on(towards(foreground, 0.58), panel),
        header_strong=style_on(primary, panel, bold=True),
        compute_line=style_on(primary),
        energy_line=style_on(success),
        transfer_line=style_on(accent),
        compute_area=style_on(towards(primary, 0.52)),
        energy_area=style_on(towards(success, 0.48)),
        transfer_area=style_on(towards(accent, 0.52)),
        compute=style_on(towards(primary, 0.72)),
        energy=style_on(towards(success, 0.66)),
        transfer=style_on(towards(accent, 0.72)),
        code=style_on(primary),
        selected=style_on(foreground, bold=True),
        cursor=style_on(foreground, background.blend(primary, 0.3), bold=True),
        info=style_on(primary),
        warning=style_on(warning, bold=True),
        critical=style_on(error, bold=True),
        warning_badge=badge(warning),
        critical_badge=style_on(light_ink, error.darken(0.08) if theme.dark else error, bold=True),
        mark=badge(accent),
        key=style_on(primary, panel, bold=True),
        key_label=style_on(towards(foreground, 0.7), panel),
        phases=tuple(style_on(color) for color in phases),
        phase_bars=tuple(style_on(dark_ink if theme.dark else light_ink, color) for color in phases),
        rest=style_on(towards(foreground, 0.3)),
    )


def _sixteen(name: str) -> Palette:
    def ink(color: str | None = None, *, bold: bool | None = None, dim: bool | None = None) -> Style:
        return Style(color=color, bold=bold, dim=dim)

    return Palette(
        name=name,
        depth="16",
        text=ink(),
        strong=ink(bold=True),
        dim=ink(dim=True),
        faint=ink(dim=True),
        header=Style(reverse=True),
        header_dim=Style(reverse=True),
        header_strong=Style(reverse=True, bold=True),
        code=ink("bright_blue"),
        compute_line=ink("bright_blue"),
        energy_line=ink("green"),
        transfer_line=ink("magenta"),
        compute_area=ink("bright_blue"),
        energy_area=ink("green"),
        transfer_area=ink("magenta"),
        compute=ink("bright_blue"),
        energy=ink("green"),
        transfer=ink("magenta"),
        selected=ink(bold=True),
        cursor=Style(reverse=True),
        info=ink("cyan"),
        warning=ink("yellow", bold=True),
        critical=ink("red", bold=True),
        warning_badge=Style(color="black", bgcolor="yellow"),
        critical_badge=Style(color="bright_white", bgcolor="red", bold=True),
        mark=Style(color="black", bgcolor="magenta"),
        key=ink("bright_blue", bold=True),
        key_label=ink(),
        phases=tuple(ink(color) for color in _PHASES_16),
        phase_bars=tuple(Style(color="black", bgcolor=color) for color in _PHASES_16),
        rest=ink(dim=True),
    )


def _mono() -> Palette:
    plain, bold, dim = Style(), Style(bold=True), Style(dim=True)
    reverse, strong_reverse = Style(reverse=True), Style(reverse=True, bold=True)
    return Palette(
        name=TERMINAL_THEME,
        depth="mono",
        text=plain,
        strong=bold,
        dim=dim,
        faint=dim,
        header=reverse,
        header_dim=reverse,
        header_strong=strong_reverse,
        code=bold,
        compute_line=plain,
        energy_line=plain,
        transfer_line=plain,
        compute_area=plain,
        energy_area=plain,
        transfer_area=plain,
        compute=plain,
        energy=plain,
        transfer=plain,
        selected=Style(bold=True, underline=True),
        cursor=reverse,
        info=plain,
        warning=bold,
        critical=bold,
        warning_badge=strong_reverse,
        critical_badge=strong_reverse,
        mark=strong_reverse,
        key=bold,
        key_label=plain,
        phases=(plain,) * 8,
        phase_bars=(plain,) * 8,
        rest=dim,
    )

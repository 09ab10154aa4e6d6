"""What ncu measured of kernels: the .ncu-rep files beside a capture, one below the other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop import format as fmt
from llmtop.errors import LlmtopError
from llmtop.naming import file_names
from llmtop.report_kinds.kinds import kind_named
from tui.core import keys
from tui.paint.rows import Row
from tui.panes.report import sentence
from tui.screens.base import LlmtopScreen
from tui.screens.scrolling import ScrollingScreen

if TYPE_CHECKING:
    from llmtop.ncu.judge import NcuReport

_SUFFIX = file_names.NCU_REPORT


def open_beside(screen: LlmtopScreen, capture: Path) -> None:
    """Open what ncu wrote into a capture's folder; where there is nothing, say how to get it."""
    if reports(capture):
        screen.llmtop.open_screen(kind_named("kernels").screen, capture)
    else:
        line = f"llmtop kernel {fmt.printable(capture.name)} --run"
        screen.notify(f"No {_SUFFIX} lies beside this capture; to make one: {line}", markup=False)


def reports(place: Path) -> list[Path]:
    """What ncu wrote into a folder, by name; of a file, itself."""
    return sorted(place.glob(f"*{_SUFFIX}")) if place.is_dir() else [place]


class KernelsScreen(ScrollingScreen):
    """For each kernel its limiter, its place under the roofs, and its counters against their thresholds."""

    NAME = keys.KERNELS
    CSS_PATH = "report.tcss"
    MARGIN = 1

    def __init__(self, path: Path) -> None:
        """Show what ncu wrote.

        Args:
            path: an .ncu-rep, or the folder that some lie in.
        """
        super().__init__()
        self.path = path
        self._read: list[tuple[Path, NcuReport | LlmtopError]] | None = None

    def on_mount(self) -> None:
        """Read them in a thread: each takes a process of its own."""
        self.in_background(partial(_all, self.path), self._show, "llmtop-kernels")

    def _show(self, found: list[tuple[Path, NcuReport | LlmtopError]]) -> None:
        self._read = found
        self.redraw()

    def command(self) -> str:
        """What shows the same from a shell."""
        return f"llmtop kernel {(reports(self.path) or [self.path])[0]}"

    def lines(self, width: int) -> list[Row]:
        """Paint all of them."""
        from llmtop.ncu.text import lines

        palette = self.cell_theme.palette
        styles = {"title": palette.strong, "warning": palette.warning, "dim": palette.dim}
        if self._read is None:
            return [Row(width), *sentence(f"reading {self.path} …", width, palette.dim)]
        rows: list[Row] = []
        for path, found in self._read:
            rows.append(Row(width).add(f"{fmt.printable(path.name)}", palette.info))
            if isinstance(found, LlmtopError):
                rows += [*sentence(str(found), width, palette.warning), Row(width)]
                continue
            rows += [Row(width).add(text, styles.get(role, palette.text)) for text, role in lines(found, width)]
        return rows


def _all(place: Path) -> list[tuple[Path, NcuReport | LlmtopError]]:
    return [(path, _one(path)) for path in reports(place)]


def _one(path: Path) -> NcuReport | LlmtopError:
    from llmtop.ncu.judge import ncu_report
    from llmtop.ncu.read import read

    try:
        return ncu_report(path, *read(path))
    except LlmtopError as error:
        return error

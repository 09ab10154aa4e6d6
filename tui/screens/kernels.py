"""Kernels that ncu measured: the .ncu-rep files beside a capture, one below the other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llmtop import format as fmt
from llmtop.errors import LlmtopError
from llmtop.naming import file_names
from llmtop.report_kinds.kinds import kind_named
from tui.core import keys
from tui.paint.document import document_rows, paragraph_rows
from tui.paint.rows import Row
from tui.screens.base import LlmtopScreen
from tui.screens.scrolling import ScrollingScreen

if TYPE_CHECKING:
    from llmtop.ncu.judge import NcuReport

_SUFFIX = file_names.NCU_REPORT


def open_beside(screen: LlmtopScreen, capture: Path) -> None:
    """Open the screen of ncu's reports in a capture's folder; without reports, show the command that makes one."""
    if reports(capture):
        screen.llmtop.open_screen(kind_named("kernels").screen, capture)
    else:
        line = f"llmtop kernel {fmt.printable(capture.name)} --run"
        screen.notify(f"To measure the kernels of this capture with ncu ({_SUFFIX}): {line}", markup=False)


def reports(place: Path) -> list[Path]:
    """Return the reports of ncu in a folder, by name; a file is returned itself."""
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
        """Return the command that shows the same in a shell."""
        return f"llmtop kernel {self._read[0][0] if self._read else self.path}"

    def lines(self, width: int) -> list[Row]:
        """Paint all of them."""
        from llmtop.ncu.document import report_blocks

        theme = self.cell_theme
        if self._read is None:
            return [Row(width), *paragraph_rows(f"reading {self.path} …", "dim", width, theme)]
        rows: list[Row] = []
        for path, found in self._read:
            rows += paragraph_rows(path.name, "info", width, theme)
            if isinstance(found, LlmtopError):
                rows += paragraph_rows(str(found), "warning", width, theme)
            else:
                rows += document_rows(report_blocks(found), width, theme)
            rows.append(Row(width))
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

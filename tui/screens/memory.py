"""A capture of the allocator: who holds GPU memory, when most was held, what grows; as tables that scroll."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from llmtop.errors import LlmtopError, UnusableInput
from llmtop.memory.document import memory_document
from llmtop.memory.model import MemoryReport
from tui.core import keys
from tui.paint.document import document_rows, paragraph_rows
from tui.paint.rows import Row
from tui.screens.scrolling import ScrollingScreen


class MemoryScreen(ScrollingScreen):
    """One snapshot of the allocator, or those of several ranks."""

    NAME = keys.MEMORY
    CSS_PATH = "report.tcss"

    def __init__(self, path: Path) -> None:
        """Show a capture of memory.

        Args:
            path: its folder, or a snapshot.
        """
        super().__init__()
        self.path = path
        self._report: MemoryReport | None = None
        self._refusal = ""
        self._painted: tuple[object, list[Row]] | None = None

    def on_mount(self) -> None:
        """Read the snapshot in a thread: one of a large training takes seconds."""
        self.in_background(partial(_read, self.path), self._show, "llmtop-memory")

    def _show(self, found: MemoryReport | LlmtopError) -> None:
        if isinstance(found, LlmtopError):
            self._refusal = str(found)
        else:
            self._report = found
        self.redraw()

    def command(self) -> str:
        """Return the command that shows the same in a shell."""
        return f"llmtop report {self.path}"

    def lines(self, width: int) -> list[Row]:
        """Paint all of it; anew only for another width or look."""
        theme = self.cell_theme
        if self._report is None:
            said = self._refusal or f"reading {self.path} …"
            return [Row(width), *paragraph_rows(said, "warning" if self._refusal else "dim", width, theme)]
        key = (width, theme)
        if self._painted is None or self._painted[0] != key:
            self._painted = key, document_rows(memory_document(self._report).blocks, width, theme)
        return list(self._painted[1])


def _read(path: Path) -> MemoryReport | LlmtopError:
    from llmtop.memory.analyze import analyze_memory
    from llmtop.memory.files import memory_files

    try:
        files = memory_files([path])
        if not files:
            return UnusableInput(f"{path} holds no memory snapshot")
        return analyze_memory(files)
    except LlmtopError as error:
        return error

"""Reports of recorded H200s, for pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# From the repository's root, so that no picture shows whose machine it was drawn on.
_DATA = Path("tests") / "data"
LAUNCH_BOUND = _DATA / "h200" / "nsys" / "launch_bound.sqlite.gz"
HEALTHY = _DATA / "h200" / "nsys" / "healthy.sqlite.gz"
TWO_GPUS = _DATA / "h200x2" / "nsys" / "healthy.sqlite.gz"


def open_report(path: Path, against: Path | None = None) -> Callable[[Any], None]:
    """Open the report of a capture, held against another one as baseline."""

    def push(app: Any) -> None:
        from llmtop.analysis.load_report import load_report
        from tui.screens import report_picker
        from tui.screens.report import ReportScreen
        from tui.screens.report_picker import Loaded

        report_picker.mark(None if against is None else Loaded(against, load_report(against)))
        screen = ReportScreen(path)
        # Read here and now: a picture waits for no thread.
        screen._loaded = Loaded(path, load_report(path))
        app.push_screen(screen)

    return push

"""llmtop runs open: the screen on a run, rewound to its last minute."""

from __future__ import annotations

import math

from llmtop.cli.live.command import print_snapshots, require_terminal, show_feed
from llmtop.config import current
from llmtop.errors import EXIT_DONE
from llmtop.runs.node_notes import NodeNotes
from llmtop.runs.store import Run

_FROM_END_SECONDS = 60.0


def open_run(run: Run, notes: NodeNotes, *, as_json: bool) -> int:
    """Show a run as a replay shows a recording.

    Args:
        run: as of `llmtop.runs.store`.
        notes: of monitors on it.
        as_json: print its snapshots instead, from the first to the last.

    Returns:
        The exit code.
    """
    from collectors.replay import ReplayFeed
    from collectors.runs.alerts import RunAlerts, RunFigures
    from collectors.runs.past import opened_run
    from collectors.runs.snapshots import RunSnapshots

    if not as_json:
        require_terminal("llmtop runs show, or llmtop runs open --json")
    reader = RunSnapshots(run, notes)
    feed = ReplayFeed(
        reader, lambda: RunAlerts(reader), math.inf if as_json else 1.0, make_figures=lambda: RunFigures(reader)
    )
    if as_json:
        print_snapshots(feed)
        return EXIT_DONE
    feed.seek(max(0.0, reader.length - _FROM_END_SECONDS))
    chosen = current()
    opened = opened_run(run, reader.members[-1].first)
    return show_feed(feed, ascii=chosen.ascii, theme=chosen.theme, opened=opened)

"""A cluster as text: what `llmtop cluster --once` prints. The pane uses the same sentences."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.prometheus.cluster_view import ClusterView
from collectors.prometheus.node_words import node_notes
from collectors.prometheus.words import (
    counts_text,
    critical_text,
    hung_text,
    late_text,
    missing_text,
    run_text,
    state_notes,
)

MOST_NODES = 20


def render(view: ClusterView) -> str:
    """Some lines, the worst first."""
    return "\n".join(_lines(view)) + "\n"


def _lines(view: ClusterView) -> Iterator[str]:
    yield f"llmtop cluster, {view.server}: {counts_text(view)}"
    yield from (f"! {sentence}" for sentence in state_notes(view))
    yield from map(run_text, view.runs)
    for title, found in (
        ("missing", [words for words in map(missing_text, view.runs) if words]),
        ("nodes", [f"{one.severity} {one.kind}: {one.text}" for one in node_notes(view)]),
        ("hung", [hung_text(one) for one in view.hung]),
        ("stragglers", [late_text(one) for one in view.late if one.is_straggler]),
        ("late", [late_text(one) for one in view.late if not one.is_straggler]),
        ("critical", [critical_text(one) for one in view.grave if one.id != "link_errors"]),
        ("link errors", [critical_text(one) for one in view.grave if one.id == "link_errors"]),
    ):
        if found:
            yield ""
            yield title
            yield from (f"  {words}" for words in found)
    bad = [node for node in view.nodes if node.badness > 0]
    if bad:
        yield ""
        yield "nodes, the worst first"
        yield from (f"  {node.name}: {', '.join(node.reasons)}" for node in bad[:MOST_NODES])
        if len(bad) > MOST_NODES:
            yield f"  and {len(bad) - MOST_NODES} more"

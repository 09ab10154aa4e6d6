"""A report as one HTML page that needs nothing else: no network, no other file, works from a mail attachment.

The page, its style and its script are files in `page/`. Jinja2 fills them and escapes what comes from a report;
only the drawing of the roofline, which escapes its words itself, is put in as it is.
The page forbids itself to load or send anything, and to run any script but its own, so even a name that got
through could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from llmtop.format import duration, printable
from llmtop.report.model import Report, Timeline
from llmtop.report.roofline_plot import roofline_plot
from llmtop.report.tables import evidence_text, headline, shown_notes, step_lines, tables

COLORS = {
    "GEMM": "#4c78a8",
    "convolution": "#1f5f9f",
    "attention": "#72b7b2",
    "normalisation": "#9d755d",
    "elementwise": "#b5b35c",
    "reduction": "#8cd17d",
    "embedding": "#d4a6c8",
    "NCCL": "#e45756",
    "optimizer": "#b279a2",
    "copy": "#f58518",
    "memset": "#bab0ac",
    "graph": "#2f4b6e",
    "other": "#79706e",
    "launch": "#f2b701",
    "queued": "#cfcfcf",
    "sync": "#d62728",
    "input": "#9467bd",
    "allocation": "#8c564b",
    "host": "#7f7f7f",
    "os_wait": "#5f7f9f",
    "other_process": "#17becf",
    "unknown": "#c7c7c7",
}
"""Of kernels by what they compute, of gaps by cause, of host calls by kind."""
_PHASES = ("#88ccee", "#ddcc77", "#44aa99", "#cc6677", "#aa4499", "#999933", "#117733", "#332288")


def render(report: Report) -> str:
    """The report as one HTML page that needs no other file."""
    environment = _environment()
    return environment.get_template("page.html").render(
        report=report,
        headline=headline(report),
        steps=step_lines(report),
        timeline=None if report.timeline is None else _timeline(report.timeline),
        plot=roofline_plot(report),  # safe as it is: it escapes every text itself
        tables=tables(report, name_width=120),
        notes=shown_notes(report),
        policy=_policy(environment),
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("llmtop.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value, 4000) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "evidence": evidence_text}
    return environment


def _policy(environment: Environment) -> str:
    """What a browser lets the page do: run the one script, by its hash, and nothing from outside."""
    script = environment.get_template("script.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _timeline(timeline: Timeline) -> dict[str, Any]:
    which = f"Step {timeline.step} of the whole ones" if timeline.step is not None else "The beginning"
    kinds = dict.fromkeys(span.kind for row in timeline.rows for span in row.spans)
    key = [(printable(kind, 40), color) for kind, color in _colored(list(kinds))]
    place = {kind: index for index, kind in enumerate(kinds)}
    texts: dict[str, int] = {}
    rows = [
        [
            [
                round(span.start, 9),
                round(span.seconds, 9),
                round(span.fill, 3),
                place[span.kind],
                texts.setdefault(printable(span.text, 200), len(texts)),
            ]
            for span in row.spans
        ]
        for row in timeline.rows
    ]
    return {
        "title": f"{which}, {duration(timeline.seconds)}",
        "labels": [row.label for row in timeline.rows],
        "key": key,
        "data": {"seconds": max(timeline.seconds, 1e-9), "kinds": key, "texts": list(texts), "rows": rows},
    }


def _colored(kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Each kind with its colour; phases, which have any name, take turns."""
    others = 0
    for kind in kinds:
        if kind in COLORS:
            yield kind, COLORS[kind]
        else:
            yield kind, _PHASES[others % len(_PHASES)]
            others += 1

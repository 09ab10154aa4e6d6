"""A report as one HTML page that needs nothing else: no network, no other file, works from a mail attachment.

The page, its style and its script are files in `page/`. Jinja2 fills them and escapes what comes from a report;
only the drawing of the roofline, which escapes its words itself, is put in as it is.
The page forbids itself to load or send anything, and to run any script but its own, so even a name that got
through could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from llmtop.format import duration, printable
from llmtop.report.model import Report, Timeline
from llmtop.report.render.roofline_plot import roofline_plot
from llmtop.report.render.tables import evidence_text, first_lines, headline, shown_notes, step_lines, tables
from llmtop.report.whole_timeline import DeviceRows, PieceRow, WholeTimeline

_MOST_ROWS = 200
"""Of a table."""
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
    "step": "#d0d7de",
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
    shown = report.whole_timeline
    if shown is None and report.timeline is not None:
        shown = _whole_from_step(report.timeline)
    return environment.get_template("page.html").render(
        report=report,
        first=first_lines(report),
        headline=headline(report),
        steps=step_lines(report),
        timeline=None if shown is None else _timeline(shown),
        plot=roofline_plot(report),  # safe as it is: it escapes every text itself
        tables=tables(report, name_width=120),
        notes=shown_notes(report),
        most_rows=_MOST_ROWS,
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
    environment.filters |= {"duration": duration, "evidence": evidence_text, "breakable": _with_line_breaks}
    return environment


def _policy(environment: Environment) -> str:
    """What a browser lets the page do: run the one script, by its hash, and nothing from outside."""
    script = environment.get_template("script.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _timeline(timeline: WholeTimeline) -> dict[str, Any]:
    key = [(printable(kind, 40), color) for kind, color in _kind_colors(list(timeline.kinds))]
    rows = [
        {
            "starts": row.starts,
            "lengths": row.lengths,
            "kinds": row.kinds,
            "texts": row.texts,
            "counts": row.counts,
            "fills": row.fills,
        }
        for device in timeline.devices
        for row in device.rows
    ]
    return {
        "title": f"{timeline.title}, {duration(timeline.length / 1e9)}",
        "devices": [
            {"label": device.label, "rows": [printable(row.label, 80) for row in device.rows]}
            for device in timeline.devices
        ],
        "key": key,
        "left_out": timeline.left_out,
        "data": {
            "length": timeline.length,
            "kinds": key,
            "texts": [printable(text, 200) for text in timeline.texts],
            "steps": timeline.steps,
            "usual": timeline.usual,
            "rows": rows,
        },
    }


def _whole_from_step(timeline: Timeline) -> WholeTimeline:
    """The one step of a report that was made without a page in mind."""
    kinds: dict[str, int] = {}
    texts: dict[str, int] = {}
    rows = []
    for row in timeline.rows:
        spans = sorted(row.spans, key=lambda span: span.start)
        starts = [round(span.start * 1e9) for span in spans]
        rows.append(
            PieceRow(
                label=row.label,
                starts=tuple(start - before for before, start in zip([0, *starts], starts, strict=False)),
                lengths=tuple(round(span.seconds * 1e9) for span in spans),
                kinds=tuple(kinds.setdefault(span.kind, len(kinds)) for span in spans),
                texts=tuple(texts.setdefault(span.text, len(texts)) for span in spans),
                fills=tuple(round(100 * span.fill) for span in spans),
            )
        )
    which = f"Step {timeline.step} of the whole ones" if timeline.step is not None else "The beginning"
    return WholeTimeline(
        title=which,
        length=max(round(timeline.seconds * 1e9), 1),
        kinds=tuple(kinds),
        texts=tuple(texts),
        devices=(DeviceRows(label="", rows=tuple(rows)),),
    )


_LONG_WORD = re.compile(r"\S{24,}")
_PARTS = re.compile(r"(?<=[_<,/.:;=&|])(?=[^_<,/.:;=&|\s])")


def _with_line_breaks(text: str) -> Markup:
    """The text, escaped; in long words, names of kernels and files, a line may end between their parts."""
    made, after = Markup(), 0
    text = printable(text, 4000)
    for word in _LONG_WORD.finditer(text):
        made += escape(text[after : word.start()]) + _MAY_BREAK.join(_PARTS.split(word[0]))
        after = word.end()
    return made + escape(text[after:])


_MAY_BREAK = Markup("<wbr>")


def _kind_colors(kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Each kind with its colour; phases, which have any name, take turns."""
    others = 0
    for kind in kinds:
        if kind in COLORS:
            yield kind, COLORS[kind]
        else:
            yield kind, _PHASES[others % len(_PHASES)]
            others += 1

"""A document as one HTML page that needs nothing else: no network, no other file, works from a mail attachment.

The page, its style and its script are files in `page/`. Jinja2 fills them and escapes what comes from a report;
only the drawings, which escape their texts themselves, are put in as they are.
The page forbids itself to load or send anything, and to run any script but its own, so even a name that got
through could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from llmtop.document.cells import clean
from llmtop.document.model import AreaChart, Block, Document, Listing, Paragraph, RooflinePlot
from llmtop.document.svg import area_svg, roofline_svg
from llmtop.document.text import finding_parts, finding_sentence
from llmtop.document.timeline import WholeTimeline
from llmtop.format import duration, printable

_MOST_ROWS = 200
"""Limit of a table."""
_MOST_LINES = 5000
"""Limit of a listing."""
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
    "preempted": "#bc5090",
    "sleeping": "#7a5195",
    "waiting": "#8da0cb",
    "off_cpu": "#a3a3c2",
    "other_process": "#17becf",
    "unknown": "#c7c7c7",
}
"""Colors of kernels by kind of computation, of gaps by cause, of host calls by kind."""
_PHASES = ("#88ccee", "#ddcc77", "#44aa99", "#cc6677", "#aa4499", "#999933", "#117733", "#332288")


def write_html(document: Document) -> str:
    """Return the document as one HTML page that needs no other file."""
    environment = _environment()
    return environment.get_template("page.html").render(
        title=document.title,
        warning=document.warning,
        groups=[
            (kind, [_template_block(block) for block in blocks])
            for kind, blocks in groupby(document.blocks, key=_kind)
        ],
        has_timeline=any(isinstance(block, WholeTimeline) for block in document.blocks),
        most_rows=_MOST_ROWS,
        policy=_policy(environment),
    )


def _kind(block: Block) -> str:
    """Return the name by which the page's template knows a block."""
    return "Item" if isinstance(block, Paragraph) and block.is_item else type(block).__name__


def _template_block(block: Block) -> Any:
    """Return a block for the template: itself, or its drawing."""
    if isinstance(block, WholeTimeline):
        return _timeline(block)
    if isinstance(block, RooflinePlot):
        return Markup(roofline_svg(block))
    if isinstance(block, AreaChart):
        return {"title": block.title, "svg": Markup(area_svg(block))}
    if isinstance(block, Listing):
        return {"title": block.title, "lines": Markup("\n").join(map(clean, block.lines[:_MOST_LINES]))}
    return block


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("llmtop.document", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": _with_line_breaks, "parts": finding_parts, "sentence": finding_sentence}
    return environment


def _policy(environment: Environment) -> str:
    """Content security policy of the page: run the one script, by its hash, and load nothing from outside."""
    script = environment.get_template("script.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _timeline(timeline: WholeTimeline) -> dict[str, Any]:
    key = [(clean(kind), color) for kind, color in _kind_colors(list(timeline.kinds))]
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
            {"label": device.label, "rows": [clean(row.label) for row in device.rows]}
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


_LONG_WORD = re.compile(r"\S{24,}")
_PARTS = re.compile(r"(?<=[_<,/.:;=&|])(?=[^_<,/.:;=&|\s])")


def _with_line_breaks(text: str) -> Markup:
    """Return the text, escaped; in long words, names of kernels and files, a line may end between their parts."""
    made, after = Markup(), 0
    text = clean(text)
    for word in _LONG_WORD.finditer(text):
        made += escape(text[after : word.start()]) + _MAY_BREAK.join(_PARTS.split(word[0]))
        after = word.end()
    return made + escape(text[after:])


_MAY_BREAK = Markup("<wbr>")


def _kind_colors(kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each kind with its color; phases, which have any name, take turns."""
    others = 0
    for kind in kinds:
        if kind in COLORS:
            yield kind, COLORS[kind]
        else:
            yield kind, _PHASES[others % len(_PHASES)]
            others += 1

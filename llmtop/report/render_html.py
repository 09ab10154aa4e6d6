"""A report as one HTML page that needs nothing else: no network, no other file, works from a mail attachment.

Everything that comes from a report passes `_text`. The page forbids itself to load or send anything, so even a
name that got through could not reach out.
"""

from __future__ import annotations

from html import escape

from llmtop.format import duration, printable
from llmtop.report.model import Finding, Report, Timeline, TimelineRow
from llmtop.report.tables import Text, evidence_text, headline, shown_notes, step_lines, tables

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
_WIDE = 1000

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; margin-bottom: .2em; } h2 { font-size: 1.1em; margin: 1.6em 0 .4em; }
.dim { color: var(--dim); } .summary { font-size: 1.1em; font-weight: 600; }
table { border-collapse: collapse; } td, th { padding: .15em .7em .15em 0; border-bottom: 1px solid var(--line);
text-align: right; vertical-align: top; } .w { text-align: left; overflow-wrap: anywhere; }
.finding { border-left: 4px solid #888; padding: .1em .8em; margin: .8em 0; }
.critical { border-color: #d62728; } .warning { border-color: #f2b701; }
.finding p { margin: .2em 0; } code, pre { font: 12px/1.4 ui-monospace, monospace; }
pre { background: #8881; padding: .5em; overflow-x: auto; }
.lane { display: flex; align-items: center; margin: 2px 0; } .lane span { width: 9em; flex: none; overflow: hidden;
text-overflow: ellipsis; white-space: nowrap; } .lane svg { flex: 1; height: 22px; background: #8881; }
#timeline { user-select: none; touch-action: none; } .key { display: inline-block; width: .8em; height: .8em;
margin: 0 .3em 0 .9em; }
"""

_SCRIPT = """
(() => {
  const box = document.getElementById('timeline');
  if (!box) return;
  const drawings = box.querySelectorAll('svg'), label = document.getElementById('range');
  const seconds = Number(box.dataset.seconds);
  let from = 0, to = 1, grip = null;
  const show = () => {
    for (const d of drawings) d.setAttribute('viewBox', `${from * 1000} 0 ${(to - from) * 1000} 20`);
    const ms = x => (x * seconds * 1000).toPrecision(4);
    label.textContent = `${ms(from)} to ${ms(to)} ms`;
  };
  const at = e => { const r = drawings[0].getBoundingClientRect();
    return from + (to - from) * Math.min(1, Math.max(0, (e.clientX - r.left) / r.width)); };
  const set = (a, b) => { const w = Math.min(1, Math.max(1e-5, b - a)); from = Math.min(1 - w, Math.max(0, a));
    to = from + w; show(); };
  box.addEventListener('wheel', e => { e.preventDefault(); const f = e.deltaY > 0 ? 1.25 : 0.8, m = at(e);
    set(m - (m - from) * f, m + (to - m) * f); }, { passive: false });
  box.addEventListener('pointerdown', e => { grip = at(e); box.setPointerCapture(e.pointerId); });
  box.addEventListener('pointermove', e => {
    if (grip !== null) { const d = grip - at(e); set(from + d, to + d); } });
  box.addEventListener('pointerup', () => { grip = null; });
  box.addEventListener('dblclick', () => set(0, 1));
  show();
})();
"""


def render(report: Report) -> str:
    """The report as one HTML page that needs no other file."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.verdict)} – llmtop report</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(report.verdict)}</h1>",
        f'<p class="dim">{_text(headline(report))}</p>',
        f'<p class="summary">{_text(report.summary)}</p>',
        *(f'<p class="dim">{_text(line)}</p>' for line in step_lines(report)),
    ]
    if report.timeline is not None:
        parts.append(_timeline(report.timeline))
    if report.findings:
        parts.append("<h2>Findings</h2>")
        parts += [_finding(finding) for finding in report.findings]
    if report.roofline:
        parts.append(f"<h2>Ceilings</h2><p>{_text(report.roofline)}</p>")
    parts += [_table(table) for table in tables(report, name_width=120)]
    if report.notes:
        parts.append(
            "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in shown_notes(report)) + "</ul>"
        )
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
    return "\n".join(parts) + "\n"


def _text(value: str) -> str:
    return escape(printable(value, 4000), quote=True)


def _finding(finding: Finding) -> str:
    lines = [
        f'<div class="finding {_text(finding.severity)}">',
        f"<p><b>{_text(finding.id)}</b> ({_text(finding.severity)}): {_text(finding.summary)}</p>",
    ]
    if finding.evidence:
        lines.append(f'<p class="dim">{_text(evidence_text(finding))}</p>')
    if finding.fix:
        lines.append(f"<p>{_text(finding.fix)}</p>")
    if finding.saves_at_most_ms is not None:
        lines.append(f"<p>Saves at most {_text(duration(finding.saves_at_most_ms / 1e3))} a step.</p>")
    if finding.confirm:
        lines.append(f"<p>Confirm: {_text(finding.confirm)}.</p>")
    if finding.next:
        lines.append(f"<pre>{_text(finding.next)}</pre>")
    return "\n".join([*lines, "</div>"])


def _table(table: Text) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=w' if index < table.left else ''}>{_text(cell)}</{tag}>"
            for index, cell in enumerate(row)
        )

    rows = [f"<tr>{cells(table.header, 'th')}</tr>", *(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)]
    return f"<h2>{_text(table.title)}</h2>\n<table>\n" + "\n".join(rows) + "\n</table>"


def _timeline(timeline: Timeline) -> str:
    which = f"Step {timeline.step} of the whole ones" if timeline.step is not None else "The beginning"
    head = (
        f"<h2>{which}, {_text(duration(timeline.seconds))}</h2>"
        '<p class="dim">Wheel: zoom. Drag: pan. Double click: all. <span id="range"></span></p>'
    )
    colors = dict(COLORS)
    for row in timeline.rows:
        for span in row.spans:
            if span.kind not in colors:
                colors[span.kind] = _PHASES[len(colors) % len(_PHASES)]
    rows = "\n".join(_row(row, timeline.seconds, colors) for row in timeline.rows)
    used = dict.fromkeys(span.kind for row in timeline.rows for span in row.spans)
    keys = "".join(f'<span class="key" style="background:{colors[kind]}"></span>{_text(kind)}' for kind in used)
    return f'{head}<div id="timeline" data-seconds="{timeline.seconds:.9f}">{rows}</div><p>{keys}</p>'


def _row(row: TimelineRow, seconds: float, colors: dict[str, str]) -> str:
    pieces = []
    for span in row.spans:
        scale = _WIDE / max(seconds, 1e-9)
        height, width = 20 * max(0.15, min(1.0, span.fill)), max(span.seconds * scale, 0.02)
        said = f"{span.text} ({span.kind}): {duration(span.seconds)} at {duration(span.start)}"
        pieces.append(
            f'<rect x="{span.start * scale:.3f}" y="{20 - height:.1f}" width="{width:.3f}" height="{height:.1f}" '
            f'fill="{colors[span.kind]}"><title>{_text(said)}</title></rect>'
        )
    drawing = f'<svg viewBox="0 0 {_WIDE} 20" preserveAspectRatio="none" role="img">{"".join(pieces)}</svg>'
    return f'<div class="lane"><span title="{_text(row.label)}">{_text(row.label)}</span>{drawing}</div>'

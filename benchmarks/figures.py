"""The tables of docs/figures.md that benchmarks write: each stands between comments that name its benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import Result

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures.md"


def write(name: str, machine: str, results: Sequence[Result]) -> bool:
    """Put the figures of a benchmark into the page; returns whether it has a place for them.

    Args:
        name: of the benchmark.
        machine: what they were measured on.
        results: all of them.
    """
    begin, end = f"<!-- python -m benchmarks {name} -->\n", f"<!-- end of {name} -->"
    text = PAGE.read_text()
    if begin not in text or end not in text:
        return False
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    PAGE.write_text(f"{before}{begin}{table(machine, results)}{end}{after}")
    return True


def table(machine: str, results: Sequence[Result]) -> str:
    """Return the figures as Markdown."""
    rows = [f"| {machine} | figure | 95 % interval | promised | how |", "|---|---|---|---|---|"]
    rows += [
        f"| {'– ' if one.name.startswith(' ') else ''}{one.name.strip()} | {_with_unit(one.value, one.unit)} | "
        f"{'' if one.interval is None else ' to '.join(_number(end) for end in one.interval)} | "
        f"{_promise(one)} | {one.note} |"
        for one in results
    ]
    return "\n".join(rows) + "\n"


def _promise(one: Result) -> str:
    if one.limit is None:
        return ""
    limit = _with_unit(one.limit, one.unit)
    return limit if one.is_within_limit else f"**{limit}: not kept**"


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)}{'' if unit == 'x' else ' '}{unit}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"

"""The page that Prometheus reads, made of the client library's families.

The library's own `generate_latest` writes the same to the byte, which a test holds this to, but takes three times
as long: it asks of each label of each line whether its name needs quotes. Fetched each second, that was a third of
what `llmtop export` may take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

_KINDS: Final = {"counter": ("_total", "counter"), "gauge": ("", "gauge"), "unknown": ("", "untyped")}
"""Ending of the name and Prometheus's type, by the family's type: all types that the exporter has."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def page(families: Iterable[Metric]) -> bytes:
    """Return the text of these, in Prometheus' format 0.0.4.

    Args:
        families: counters, gauges and untyped ones, without timestamps, whose names and labels need no quotes.
    """
    lines = []
    known: dict[tuple[tuple[str, str], ...], str] = {}  # a GPU's and a rank's labels come again and again
    for family in families:
        ending, kind = _KINDS[family.type]
        name = family.name + ending
        lines.append(f"# HELP {name} {_one_line(family.documentation)}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            pairs = tuple(sample.labels.items())
            labels = known.get(pairs)
            if labels is None:
                labels = known[pairs] = _labels(pairs)
            number: str = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
            lines.append(f"{sample.name}{labels} {number}\n")
    return "".join(lines).encode()


def _labels(pairs: tuple[tuple[str, str], ...]) -> str:
    within = ",".join([f'{key}="{value.translate(_ESCAPES)}"' for key, value in sorted(pairs)])
    return f"{{{within}}}" if within else ""


def _one_line(words: str) -> str:
    return words.replace("\\", r"\\").replace("\n", r"\n")

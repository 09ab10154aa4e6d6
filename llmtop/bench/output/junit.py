"""Results of a bench as JUnit XML, which CI systems show beside the tests.

A case for each run and, where it was asked for, one for the decision: a regression is a failure, what noise
hides is an error, as a run is that made no whole window.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from llmtop.bench.model.comparison import BenchComparison
from llmtop.bench.model.results import Bench, BenchRun, has_enough_steps
from llmtop.bench.output.tables import comparison_sentences
from llmtop.bench.statistics.decide import Decision
from llmtop.format import printable, printable_lines

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(found: Bench) -> bytes:
    """Return the whole file."""
    cases = [_run(run, has_enough_steps(run, found.settings) or not run.attached) for run in found.runs]
    if found.comparison is not None and found.comparison.limit_pct is not None:
        cases.append(_decision(found.comparison))
    suite = ElementTree.Element(
        "testsuite", name="llmtop bench", tests=str(len(cases)), hostname=_text(found.host)
    )
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(run.wall_seconds for run in found.runs):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in found.environment.items():
        ElementTree.SubElement(properties, "property", name=_text(name), value=_text(value))
    suite.extend(cases)
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    data: bytes = ElementTree.tostring(whole, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _run(run: BenchRun, good: bool) -> ElementTree.Element:
    name = f"run {run.number}{f' ({run.label})' if run.label else ''}" if run.attached else "run without llmtop"
    case = ElementTree.Element(
        "testcase", classname="llmtop.bench", name=_text(name), time=f"{run.wall_seconds:.3f}"
    )
    if not good:
        message = "; ".join(run.notes) or f"it ended as {run.ended}, without a whole window"
        ElementTree.SubElement(case, "error", message=_text(message), type=run.ended)
    return case


def _decision(comparison: BenchComparison) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname="llmtop.bench", name=f"{comparison.metric} against the baseline", time="0"
    )
    kind = {Decision.REGRESSION.value: "failure", Decision.UNDECIDABLE.value: "error", "none": "skipped"}
    element = kind.get(comparison.decision)
    if element is not None:
        details = ElementTree.SubElement(case, element, message=_text(comparison.reason))
        if element != "skipped":
            details.set("type", comparison.decision)
            details.text = _text("\n".join(comparison_sentences(comparison)))
    else:
        ElementTree.SubElement(case, "system-out").text = _text(comparison.reason)
    return case


def _text(text: str) -> str:
    """Text without what XML cannot hold."""
    return _NOT_XML.sub("?", printable(text, 2000) if "\n" not in text else printable_lines(text))

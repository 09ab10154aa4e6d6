"""Sentences that a user reads are plain technical English: CONTRIBUTING.md, section "Words"."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import as_file, files

import pytest

from llmtop.format import DASH
from llmtop.model.bottlenecks import BOTTLENECKS
from llmtop.model.snapshot import Alert
from llmtop.recording.reader_writer import Reader
from llmtop.rules import COMMUNICATOR_RULES, GPU_RULES, JOB_RULES, LINK_RULES, RANK_RULES
from llmtop.rules.engine import Rules
from tests.support import import_data, words
from tests.support.processes import REPOSITORY
from tui.panes import alert_rows

FORBIDDEN = re.compile(
    r"\b(told|whom|nobody|somebody|anybody|whoever|dear|grave|as ever|worth a word|so much|such a one|of which|"
    r"waits least|holds? (\w+ )+up|way in|lone copies|nothing to do|what is known|a step on average|"
    r"runs? dry|stands? out|has gone|hung up)\b|\b(ms|s) a step\b|"
    r"\bwell\b(?!-)|(?<!or )\b[0-9]+%(?=[ ,.;)])",
    re.IGNORECASE,
)
"""Riddles, personification, and figures without the space before their unit."""
MOST_WORDS = 25
LEFT = {"alert": 0, "doctor": 0, "error": 0, "help": 0, "screen": 1}
"""How many sentences still have a forbidden word: only ever lowered."""
LONG_LEFT = {"alert": 12, "doctor": 0, "error": 0, "help": 0, "screen": 0}
"""How many sentences still have more than `MOST_WORDS` words between full stops, colons and semicolons.

Those of alerts are conditions of rules, which are definitions, and whole sentences with all their pieces."""
RULES = {
    rule.id: rule for rules in (GPU_RULES, RANK_RULES, JOB_RULES, COMMUNICATOR_RULES, LINK_RULES) for rule in rules
}


@pytest.mark.shape
def test_sentences_of_every_kind_are_short_and_have_no_riddles() -> None:
    found = words.sentences()  # seconds, so they are collected once
    count = Counter(one.kind for one in found)
    assert set(count) == set(words.KINDS)
    assert min(count.values()) >= 40
    texts = {one.text for one in found}
    assert "no Prometheus configured. Pass --prometheus http://node:9090" in " ".join(texts)
    assert not [one for one in found if "{fmt." in one.text], "an f-string without its example"
    for kind in words.KINDS:
        riddles = [one for one in found if one.kind == kind and FORBIDDEN.search(one.text)]
        assert len(riddles) <= LEFT[kind], "\n".join(f"{one.place} {one.text}" for one in riddles)
        long = [one for one in found if one.kind == kind and one.words > MOST_WORDS]
        assert len(long) <= LONG_LEFT[kind], "\n".join(f"{one.words} {one.place} {one.text}" for one in long)


def test_the_check_finds_a_riddle() -> None:
    for text in ("nobody is told", "60 ms a step", "the disk is well", "83% of it", "it holds the others up"):
        assert FORBIDDEN.search(text), text
    for text in ("well-known", "60 ms per step", "83 % of it", "5 or 5%)"):
        assert not FORBIDDEN.search(text), text


def test_an_alert_has_one_name_on_screen_in_reports_and_in_the_docs() -> None:
    page = (REPOSITORY / "docs/alerts.md").read_text()
    names = [bottleneck.badge for bottleneck in BOTTLENECKS.values()]
    assert len(set(names)) == len(names)
    for alert_id in RULES:
        assert f"| `{alert_id}` | {BOTTLENECKS[alert_id].badge} |" in page, alert_id


def _recorded_alerts() -> dict[tuple[str, tuple[str, ...]], Alert]:
    found = {}
    with as_file(files("llmtop") / "data" / "demo.llmtop.gz") as demo:
        streams = [[moment for _, moment in Reader(demo).snapshots()]]
    for folder in ("h200", "h200x2"):
        live = import_data.DATA / folder / "live"
        streams += [
            list(import_data.load(live, name, interval=0.5, ranks=True)) for name in import_data.names(live)
        ]
    for stream in streams:
        rules = Rules()
        for moment in stream:
            found |= {(one.id, one.points): one for one in rules.apply(moment).alerts}
    return found


def test_every_recorded_alert_fits_a_row_of_60_columns() -> None:
    """The badge, the first clause whole, and the first clause of the advice."""
    found = _recorded_alerts()
    assert len({alert_id for alert_id, _ in found}) >= 7
    for one in found.values():
        assert one.points, one.id
        badge = len(BOTTLENECKS[one.id].badge) + 5  # type: ignore[index]  # an id that a rule raised
        assert badge + len(one.points[0]) <= 60, one.points
        assert alert_rows.fitting_clause(one.next or "", 54), one.next
        assert DASH not in one.summary, one.summary
        assert one.summary.endswith("."), one.summary

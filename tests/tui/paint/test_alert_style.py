"""The severity of an alert is a sign and a word, in the rows of tables too, at every width and in every look."""

from __future__ import annotations

from typing import get_args

import pytest

from llmtop.model.bottlenecks import BOTTLENECKS, AlertId
from llmtop.model.snapshot import Alert
from screenshots.scenes import low_power, scene, straggler
from tests.tui.paint.test_painting import LOOKS, painted, viewed
from tui.paint import alert_style
from tui.panes.node_table import LEAST_STATE


@pytest.mark.parametrize(("severity", "short"), [("critical", "CRIT"), ("warning", "WARN")])
def test_every_alert_has_its_severity_and_its_word_where_the_column_is_narrowest(
    severity: str, short: str
) -> None:
    for name in get_args(AlertId):
        alert = Alert(id=name, severity=severity, since=0.0, summary="")  # type: ignore[arg-type]
        text = alert_style.badge_text(alert, 0, LEAST_STATE, LOOKS["dark"])
        assert len(text) <= LEAST_STATE
        assert (
            f"{short} {BOTTLENECKS[name].badge}" in text or f"{severity.upper()} {BOTTLENECKS[name].badge}" in text
        )


def test_the_badge_has_more_where_there_is_room() -> None:
    alert = low_power(3, 10.0, 0.0)
    texts = [alert_style.badge_text(alert, 2, room, LOOKS["dark"]) for room in (30, 23, 19, 14, 9)]
    assert texts == [
        " ■ CRITICAL LOW POWER +2 ",
        "■ CRITICAL LOW POWER +2",
        "■ CRIT LOW POWER +2",
        "CRIT LOW POWER",
        "LOW POWER",
    ]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 30), (200, 50)], ids=str)
def test_the_rows_of_the_main_screen_have_sign_and_word(size: tuple[int, int], look: str) -> None:
    moments = scene(gpus=4, spinning=(3,), slow_rank=1)
    moments[-1] = moments[-1].__class__(
        **{
            **{name: getattr(moments[-1], name) for name in moments[-1].__struct_fields__},
            "alerts": (low_power(3, 60.0, moments[-1].time), straggler(41_201, 1, 60.0, moments[-1].time)),
        }
    )
    lines = painted(viewed(*moments), LOOKS[look], *size)
    signs = LOOKS[look].glyphs
    for sign, words, badge in ((signs.critical, ("CRIT",), "LOW POWER"), (signs.warning, ("WARN",), "STRAGGLER")):
        row = next(line for line in lines[2:] if line.startswith(sign) and badge in line)
        assert any(word in row for word in words), row

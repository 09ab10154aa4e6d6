"""Every alert that a test of the rules raises is held against what a row of 60 columns has room for."""

from __future__ import annotations

from typing import Any

import pytest

from llmtop.format import DASH
from llmtop.rules.rule import FIRST_ADVICE, FIRST_CLAUSE, AlertText
from tui.panes import alert_rows


@pytest.fixture(autouse=True)
def _alerts_fit_a_narrow_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made = AlertText.__init__

    def checked(self: AlertText, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if self.summary and DASH not in self.summary:
            assert self.points, self.summary
            assert len(self.points[0]) <= FIRST_CLAUSE, self.points[0]
            assert alert_rows.fitting_clause(self.next, FIRST_ADVICE), self.next

    monkeypatch.setattr(AlertText, "__init__", checked)

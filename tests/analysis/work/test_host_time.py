"""Host time of operators without device work, by hand."""

from __future__ import annotations

import pytest

from llmtop.analysis.work.host_operators import host_operators, host_time_text, operator_free_share
from llmtop.report.host_work import HostOperatorTime
from llmtop.trace import model
from tests.support.tables import PID, Tables, steps_at

MS = 1_000_000


def _made() -> Tables:
    """`a` from 0 to 100 with `b` from 10 to 40 and from 50 to 60, in which is another `b` from 52 to 58; `c` on
    another thread from 0 to 20, and `b` from 200 to 205."""
    made = Tables()
    made.host("a", 0, 100, inputs='[[2,3]] ["float"]')
    made.host("b", 10, 40, inputs='[[4]] ["float"]')
    made.host("b", 50, 60, inputs='[[5]] ["float"]')
    made.host("b", 52, 58)
    made.host("c", 0, 20, thread=7)
    made.host("b", 200, 205)
    made.host("nn.Module: Linear_0", 5, 45, kind=model.PYTHON)
    made.host("train.py(7): step", 0, 150, kind=model.PYTHON)
    return made


def test_an_operator_s_own_time_is_without_those_within_it() -> None:
    found = {row.name: row for row in host_operators(_made().trace(), {})}
    assert list(found) == ["a", "b", "c"]
    own = {name: round(row.self_seconds * 1e9) for name, row in found.items()}
    assert own == {"a": 100 - 30 - 10, "b": 30 + 4 + 6 + 5, "c": 20}
    total = {name: round(row.total_seconds * 1e9) for name, row in found.items()}
    assert total == {"a": 100, "b": 30 + 10 + 5, "c": 20}, "of b within b the outer one has the time of both"
    assert [row.calls for row in found.values()] == [1, 4, 1]
    assert [row.share_pct for row in found.values()] == pytest.approx([48.0, 36.0, 16.0])
    assert {row.self_ms_per_step for row in found.values()} == {None}


def test_places_are_those_around_most_of_the_own_time() -> None:
    found = {row.name: row for row in host_operators(_made().trace(), {})}
    assert (found["a"].module, found["b"].module) == ("", "Linear_0"), "30 of 45 ns of b"
    assert (found["a"].source, found["b"].source, found["c"].source) == (
        "train.py(7): step",
        "train.py(7): step",
        "",
    )
    assert (found["a"].shape, found["b"].shape, found["c"].shape) == ("2x3 fp32", "4 fp32", "")


def test_time_per_step_is_of_what_began_in_the_steps_of_its_process() -> None:
    steps = {PID: steps_at(50, 100, 200), 9: steps_at(0, 1000, process=9), 5: steps_at(0)}
    found = {row.name: row.self_ms_per_step for row in host_operators(_made().trace(), steps)}
    # Of three steps: b at 50 and at 52; the one at 200 begins where the last step ends.
    assert found == {"a": 0.0, "b": pytest.approx((4 + 6) / 3 / MS), "c": 0.0}


def test_an_operator_that_outlasts_the_one_around_it_covers_what_lies_within() -> None:
    made = Tables()
    made.host("a", 0, 100)
    made.host("b", 90, 110)
    found = {row.name: round(row.self_seconds * 1e9) for row in host_operators(made.trace(), {})}
    assert found == {"a": 90, "b": 20}


def test_there_are_none_beside_device_work_or_without_operators() -> None:
    made = _made()
    made.op(0, 1)
    assert host_operators(made.trace(), {}) == ()
    plain = Tables()
    plain.host("f", 0, 10, kind=model.PYTHON)
    assert host_operators(plain.trace(), {}) == ()


def test_at_most_sixty_operators_are_listed_and_none_without_own_time() -> None:
    made = Tables()
    for number in range(70):
        made.host(f"o{number}", 1000 * number, 1000 * number + number)
    found = host_operators(made.trace(), {})
    assert [row.name for row in found] == [f"o{number}" for number in range(69, 9, -1)]
    few = Tables()
    few.host("around", 0, 10)
    few.host("all", 0, 10)
    assert len(host_operators(few.trace(), {})) == 1


def test_time_without_operators_is_of_whole_steps() -> None:
    """Operators from 0 to 100 and from 200 to 205; steps from 50 to 200."""
    trace = _made().trace()
    assert operator_free_share(trace, {PID: steps_at(50, 100, 200)}) == pytest.approx(100 * 100 / 150)
    assert operator_free_share(trace, {PID: steps_at(0)}) is None
    assert operator_free_share(trace, {}) is None
    two = _made()
    two.host("x", 0, 10, process=9)
    steps = {PID: steps_at(50, 100, 200), 9: steps_at(0, 50, process=9), 8: steps_at(0, 999, process=8)}
    assert operator_free_share(two.trace(), steps) == pytest.approx(100 * (100 + 40) / (150 + 50))


def _row(per_step: float | None) -> HostOperatorTime:
    return HostOperatorTime(
        name="aten::mm", calls=1, self_seconds=1.0, total_seconds=1.0, share_pct=12.34, self_ms_per_step=per_step
    )


@pytest.mark.parametrize(
    ("per_step", "free", "text"),
    [
        (None, None, "On the CPU aten::mm takes 12.3 % of the operators' own time."),
        (2.5, None, "On the CPU aten::mm takes 12.3 % of the operators' own time, 2.50 ms per step."),
        (
            2.5,
            98.9,
            "On the CPU aten::mm takes 12.3 % of the operators' own time, 2.50 ms per step; "
            "for 98.9 % of the steps no operator is open.",
        ),
        (2.5, 99.0, "For 99.0 % of the steps no operator is open: the time goes elsewhere."),
    ],
)
def test_the_host_s_time_in_a_sentence(per_step: float | None, free: float | None, text: str) -> None:
    assert host_time_text((_row(per_step),), free) == text
    assert host_time_text((), free) == ""

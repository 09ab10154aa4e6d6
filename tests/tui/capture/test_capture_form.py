"""The capture dialog's answers, without a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmtop.capture.base.job import Target
from llmtop.capture.capabilities import Ability
from llmtop.capture.engines import ENGINES
from llmtop.capture.trigger import SlowStep
from llmtop.protocol.wire import Hello
from tui.capture.form import ENGINE, LENGTH, OPTIONS, TARGET, WHEN, CapturableProcess, Form
from tui.paint.palette import THEMES, Palette
from tui.paint.rows import CellTheme
from tui.panes import capture as pane


def prospect(
    pid: int, rank: int | None = None, *, can: tuple[str, ...], attached: bool = True
) -> CapturableProcess:
    abilities = tuple(Ability(name, name in can, "" if name in can else f"{name} is not here") for name in ENGINES)
    return CapturableProcess(Target(pid, rank, Hello() if attached else None), abilities)


def go_to(form: Form, kind: str, name: str = "") -> None:
    form.at = form.fields().index((kind, name))


def test_it_is_filled_with_the_best_choice() -> None:
    form = Form((prospect(7, can=("torch.profiler", "py-spy", "memory")),))
    plan = form.plan()
    assert plan is not None
    assert (plan.engine, plan.steps, plan.seconds, [t.pid for t in plan.targets]) == (
        "torch.profiler",
        5,
        None,
        [7],
    )
    assert form.condition is None


def test_ranks_of_one_nsys_session_are_captured_together() -> None:
    both = tuple(prospect(pid, rank, can=("nsys", "torch.profiler", "py-spy")) for rank, pid in enumerate((7, 8)))
    plan = Form(both, pid=8).plan()
    assert plan is not None
    assert [target.pid for target in plan.targets] == [7, 8]


def test_without_nsys_the_rank_that_is_looked_at_is_captured() -> None:
    both = tuple(prospect(pid, rank, can=("torch.profiler", "py-spy")) for rank, pid in enumerate((7, 8)))
    plan = Form(both, pid=8).plan()
    assert plan is not None
    assert [target.pid for target in plan.targets] == [8]


def test_an_engine_must_be_able_for_all_that_are_chosen() -> None:
    form = Form((prospect(7, 0, can=("nsys", "py-spy")), prospect(8, 1, can=("py-spy",))))
    assert form.engine == "py-spy"
    assert [ability.engine for ability in form.abilities() if ability.is_supported] == ["py-spy"]
    go_to(form, TARGET)
    form.change(1)
    go_to(form, ENGINE)
    form.change(-1)
    assert form.engine == "nsys", "rank 0 alone can"


def test_changing_the_engine_goes_round_those_that_can_and_drops_its_options() -> None:
    form = Form((prospect(7, can=("nsys", "py-spy")),))
    go_to(form, OPTIONS, "gpu-metrics")
    form.change(1)
    assert form.plan().options == {"gpu-metrics"}  # type: ignore[union-attr]
    go_to(form, ENGINE)
    form.change(1)
    assert form.plan().options == frozenset()  # type: ignore[union-attr]
    assert form.engine == "py-spy"
    form.change(1)
    assert form.engine == "nsys"


def test_a_process_that_tells_no_steps_is_captured_by_the_clock() -> None:
    form = Form((prospect(7, can=("py-spy",), attached=False),))
    assert (form.plan().steps, form.plan().seconds) == (None, 2.0)  # type: ignore[union-attr]
    assert all(steps is None for steps, _ in form.lengths())


def test_kineto_counts_the_steps_of_a_process_that_tells_none() -> None:
    form = Form((prospect(7, can=("kineto",), attached=False),))
    assert form.plan().steps == 5  # type: ignore[union-attr]


def test_lengths_have_ends() -> None:
    form = Form((prospect(7, can=("py-spy",)),))
    go_to(form, LENGTH)
    for _ in range(50):
        form.change(-1)
    assert form.length == (1, None)
    for _ in range(50):
        form.change(1)
    assert form.length == (None, 30.0)


def test_a_condition_arms_it() -> None:
    form = Form((prospect(7, can=("py-spy",)),))
    go_to(form, WHEN)
    form.change(2)
    assert form.condition == SlowStep(medians=2.0)


def test_the_answers_stay_when_another_training_comes_and_are_made_anew_where_nobody_gave_any() -> None:
    seven, eight = prospect(7, can=("torch.profiler", "py-spy")), prospect(8, can=("nsys", "py-spy"))
    form = Form((seven,))
    go_to(form, ENGINE)
    form.change(1)
    go_to(form, LENGTH)
    form.change(1)
    later = form.updated((eight, seven))
    assert (later.group_name(later.group), later.engine, later.length) == ("pid 7", "py-spy", (10, None))
    assert later.at == form.at
    assert Form((seven,)).updated((eight,)).engine == "nsys"
    left = later.updated((eight,))
    assert (left.group_name(left.group), left.engine) == ("pid 8", "nsys")
    nobody = left.updated(())
    assert nobody.plan() is None
    assert nobody.updated((seven,)).plan() is not None


def _rows(form: Form, width: int = 100) -> list[str]:
    theme = CellTheme.for_palette(Palette.build(THEMES[0], "full"), ascii_only=False)
    rows, _ = pane.form(form, width, theme)
    return [row.plain() for row in rows]


def test_engines_that_cannot_are_one_line_but_for_nsys_whose_command_is_shown() -> None:
    one = prospect(7, can=("torch.profiler", "py-spy"))
    command = "llmtop run --nsys -- python train.py --config configs/seven_billion.yaml --data /data/shards"
    refused = Ability(
        "nsys", False, "nsys cannot attach to a running process, and this one was not started under nsys", command
    )
    others = tuple(refused if ability.engine == "nsys" else ability for ability in one.abilities)
    form = Form((CapturableProcess(one.target, others),))
    shown = _rows(form, 80)
    (line,) = [row for row in shown if "unavailable → " in row]
    assert re.search(r"nsys +unavailable → llmtop run --nsys -- python", line)
    assert line.rstrip().endswith("…")
    assert all(len(row) <= 80 for row in shown)
    assert len([row for row in shown if re.search(r"\bavailable", row)]) == 2
    assert any("unavailable: xla.profiler" in row and "w: why" in row for row in shown)
    form.unfolded = True
    assert len([row for row in _rows(form) if re.search(r"\S +unavailable\b[: ]", row)]) >= len(others) - 2
    assert any("kineto is not here" in row for row in _rows(form))


def test_memory_is_refused_for_its_reason_on_a_pytorch_without_cuda() -> None:
    hello = Hello(torch="2.8.0+cpu", engines=["torch.profiler"])
    refusal = ENGINES["memory"].refusal(Target(1, hello=hello, socket=Path("/")))
    assert refusal is not None
    assert refusal.reason == "its PyTorch 2.8.0+cpu has no CUDA"
    assert refusal.command == ""
    older = ENGINES["memory"].refusal(Target(1, hello=Hello(torch="2.8.0"), socket=Path("/")))
    assert older is not None
    assert "another version" in older.reason


@pytest.mark.parametrize("known", [(), (prospect(7, can=()),)])
def test_nothing_to_capture_makes_no_plan_and_no_crash(known: tuple[CapturableProcess, ...]) -> None:
    form = Form(known)
    for step in (1, -1):
        form.change(step)
        form.move(step)
    assert form.plan() is None

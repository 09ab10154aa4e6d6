"""Kernels, operators and phases before and after: all of it a step, and fewer of them are no speed-up."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from llmtop.analysis.analyze import analyze_trace
from llmtop.compare.compare import Comparison, compare_reports
from llmtop.compare.model import WorkChange
from llmtop.compare.phase_pairs import pair_phases
from llmtop.report.model import PhaseMean, Report
from tests.support import written
from tests.support.traces import Capture

_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 0>(int)"
_MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, 0>(int)"
_GEMM, _FLASH = "ampere_bf16_s16816gemm_128x128", "flash_fwd_kernel"


def _capture(
    kernels: dict[str, tuple[int, float]], steps: int = 8, period: float = 20_000, marked: bool = True
) -> Capture:
    """Each step runs so many of each kernel, which take so long, in µs."""
    capture = Capture()
    for step in range(steps):
        at = begin = step * period
        if marked:
            capture.range("step", begin, begin + period)
        for name, (count, took) in kernels.items():
            for _ in range(count):
                capture.operator(f"aten::{name[:5]}", at - 8, at - 1)
                capture.kernel(at, at + took, launched=at - 6, name=name)
                at += took + 10
    return capture


def _report(folder: Path, kernels: dict[str, tuple[int, float]], steps: int = 8, marked: bool = True) -> Report:
    return analyze_trace(_capture(kernels, steps, marked=marked).trace(folder))


def _rows(found: Comparison) -> dict[str, WorkChange]:
    return {row.name: row for row in found.kernels}


def test_what_is_new_gone_faster_and_slower_with_what_it_is_worth(tmp_path: Path) -> None:
    before = _report(tmp_path, {_GEMM: (4, 1000), _FLASH: (2, 500), "old_kernel": (1, 300), "same": (1, 50)})
    after = _report(tmp_path, {_GEMM: (4, 1200), _FLASH: (2, 400), "new_kernel": (2, 100), "same": (1, 50)})
    rows = _rows(compare_reports(before, after))
    assert {name: row.state for name, row in rows.items()} == {
        _GEMM: "slower", _FLASH: "faster", "old_kernel": "gone", "new_kernel": "new", "same": "same",
    }  # fmt: skip
    worth = {name: row.worth_seconds for name, row in rows.items()}
    assert worth == {
        _GEMM: pytest.approx(800e-6),
        _FLASH: pytest.approx(-200e-6),
        "old_kernel": pytest.approx(-300e-6),
        "new_kernel": pytest.approx(200e-6),
        "same": pytest.approx(0),
    }
    assert (rows["new_kernel"].count_before, rows["new_kernel"].count_after) == (0, 2)
    assert (rows[_GEMM].seconds_before, rows[_GEMM].mean_us_before) == (pytest.approx(4e-3), pytest.approx(1000))


def test_kernels_are_paired_by_their_functor(tmp_path: Path) -> None:
    before, after = _report(tmp_path, {_ADD: (3, 100), _MUL: (3, 100)}), _report(tmp_path, {_MUL: (3, 200)})
    rows = _rows(compare_reports(before, after))
    assert {name.partition(": ")[2]: row.state for name, row in rows.items()} == {
        "CUDAFunctor_add<float>": "gone",
        "MulFunctor<float>": "slower",
    }


def test_a_shorter_window_makes_nothing_faster(tmp_path: Path) -> None:
    kernels = {_GEMM: (4, 1000), _FLASH: (3, 500)}
    found = compare_reports(_report(tmp_path, kernels, steps=24), _report(tmp_path, kernels, steps=21))
    assert {row.state for row in found.kernels} == {"same"}
    assert (_rows(found)[_FLASH].window_before, _rows(found)[_FLASH].window_after) == (72, 63)
    assert "12 % fewer" in " ".join(found.notes)
    assert "but the same number per step" in " ".join(found.notes)
    assert found.same
    assert "faster" not in written.comparison(found)


def test_fewer_in_a_step_is_said_and_is_not_called_faster(tmp_path: Path) -> None:
    before = _report(tmp_path, {_GEMM: (4, 1000), _FLASH: (8, 500)})
    after = _report(tmp_path, {_GEMM: (4, 1000), _FLASH: (7, 500)})
    row = _rows(compare_reports(before, after))[_FLASH]
    assert (row.state, row.count_before, row.count_after) == ("fewer", 8, 7)
    assert row.worth_seconds == pytest.approx(-500e-6)
    assert "8 -> 7" in written.comparison(compare_reports(before, after))


def test_without_steps_fewer_in_the_window_is_no_speed_up(tmp_path: Path) -> None:
    def window(count: int, name: str) -> Report:
        # One long step's worth of kernels and nothing that repeats: no step can be told.
        made = Capture()
        at = 0.0
        for index in range(count):
            for kernel, took in ((_GEMM, 1000), (_FLASH, 500)):
                made.kernel(at, at + took + index * 0.01, launched=at - 6, name=kernel)
                at += took + 10
        report = analyze_trace(made.trace(tmp_path))
        bare = [structs.replace(device, steps=0, step_seconds=None) for device in report.devices]
        kernels = tuple(structs.replace(row, per_step=()) for row in report.kernels)
        steps = structs.replace(report.steps, count=0, seconds_p50=None)
        return structs.replace(report, source=name, devices=tuple(bare), kernels=kernels, steps=steps)

    found = compare_reports(window(25, "one"), window(22, "two"))
    assert found.step is None
    assert {row.state for row in found.kernels} == {"same"}, "each takes as long"
    assert found.work_ratio == pytest.approx(22 / 25)
    assert "0.88x the work of the first" in found.summary
    assert "for equal work the GPU is 1.00x as fast" in found.summary
    assert "12 % fewer attention kernels (25 before, 22 after)" in " ".join(found.notes)
    assert "faster" not in found.summary


def test_twice_the_work_in_twice_the_time_is_no_slow_down(tmp_path: Path) -> None:
    def accumulated(batches: int) -> Report:
        kernels = {_GEMM: (4 * batches, 1000.0), _FLASH: (2 * batches, 500.0), "adam": (1, 40.0)}
        return analyze_trace(_capture(kernels, period=6_000 * batches).trace(tmp_path))

    found = compare_reports(accumulated(1), accumulated(2))
    assert found.work_ratio == pytest.approx(2)
    assert "longer: 6.00 ms to 12.0 ms" in found.summary
    assert "it does 2.00x the work" in found.summary
    assert "for equal work it is 1.00x as fast" in found.summary
    assert "slower" not in found.summary


def test_another_size_of_everything_is_said(tmp_path: Path) -> None:
    small = {_GEMM: (4, 500.0), _FLASH: (2, 200.0), _ADD: (2, 100.0), "layer_norm_kernel": (1, 80.0)}
    large = {name: (count, took * 2) for name, (count, took) in small.items()}
    notes = compare_reports(_report(tmp_path, small), _report(tmp_path, large)).notes
    assert any("every kind are longer, by 2.00x at least" in note for note in notes)
    only_one = small | {_GEMM: (4, 1000.0)}
    notes = compare_reports(_report(tmp_path, small), _report(tmp_path, only_one)).notes
    assert not any("every kind" in note for note in notes)


def test_operators_are_compared_a_step(tmp_path: Path) -> None:
    def traced(kernels: dict[str, tuple[int, float]], steps: int) -> Report:
        return analyze_trace(_capture(kernels, steps).chrome_trace(tmp_path))

    before = traced({_GEMM: (4, 1000), _FLASH: (2, 500)}, 9)
    after = traced({_GEMM: (4, 1000), _FLASH: (3, 500), "new_one": (1, 90)}, 6)
    rows = {row.name: row for row in compare_reports(before, after).operators}
    assert {name: (row.state, row.count_before, row.count_after) for name, row in rows.items()} == {
        "aten::amper": ("same", 4, 4),
        "aten::flash": ("more", 2, 3),
        "aten::new_o": ("new", 0, 1),
    }
    assert rows["aten::flash"].worth_seconds == pytest.approx(500e-6)
    lacking = compare_reports(before, _report(tmp_path, {_GEMM: (4, 1000)}))
    assert lacking.operators == ()
    assert "only the first knows operators" in lacking.notes


def test_a_figure_a_step_has_its_spread(tmp_path: Path) -> None:
    """Whether a kernel moved is told by how much it varies from step to step."""

    def noisy(middle: float) -> Report:
        made = Capture()
        for step in range(10):
            begin = step * 10_000
            made.range("step", begin, begin + 10_000)
            took = middle + (400 if step % 2 else -400)
            made.kernel(begin + 100, begin + 100 + took, launched=begin + 10, name=_GEMM)
            made.kernel(begin + 5_000, begin + 6_000, launched=begin + 20, name=_FLASH)
        return analyze_trace(made.trace(tmp_path))

    row = next(row for row in noisy(2_000).kernels if row.name == _GEMM)
    assert row.per_step[0].count == 1
    assert row.per_step[0].seconds == pytest.approx(2e-3, rel=0.05)
    assert row.per_step[0].deviation == pytest.approx(400e-6, rel=0.05)
    assert _rows(compare_reports(noisy(2_000), noisy(2_200)))[_GEMM].state == "same"
    assert _rows(compare_reports(noisy(2_000), noisy(3_000)))[_GEMM].state == "slower"


def test_what_comes_from_nothing_is_told_in_words(tmp_path: Path) -> None:
    def waiting(us: float) -> Report:
        made = Capture()
        for step in range(9):
            begin = step * 20_000
            made.range("step", begin, begin + 20_000)
            made.range("dataload", begin, begin + us)
            made.kernel(begin + us + 10, begin + 19_990, launched=begin + us)
        return analyze_trace(made.trace(tmp_path))

    there, back = compare_reports(waiting(10), waiting(9_565)), compare_reports(waiting(9_565), waiting(10))
    row = next(row for row in there.phases if row.name == "dataload, host")
    assert (row.told, row.change_pct) == ("from nearly 0", None)
    assert next(row for row in back.phases if row.name == "dataload, host").told == "nearly -100%"
    part = next(row for row in there.parts if row.name == "waiting for input")
    assert part.told == "from nearly 0"
    for found in (there, back):
        assert "nearly" in written.short_comparison(found)
        assert "00 %" not in written.short_comparison(found).replace("100 %", "")


def _phase(name: str) -> PhaseMean:
    return PhaseMean(name=name, pid=1, host_seconds=1e-3, gpu_seconds=1e-3)


@pytest.mark.parametrize(
    ("before", "after", "pairs"),
    [
        # A loader with workers is another class, and torch.profiler names its range after that.
        (
            ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "outside"],
            ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "outside"],
            {
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": (
                    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                ),
                "outside": "outside",
            },
        ),
        # A script's own range under nsys, torch's range under torch.profiler.
        (
            ["optimizer", "outside"],
            ["Optimizer.zero_grad#AdamW.zero_grad", "Optimizer.step#AdamW.step", "outside"],
            {"optimizer": "Optimizer.step#AdamW.step", "outside": "outside"},
        ),
        # torch.profiler adds ranges within the script's.
        (
            ["forward", "optimizer"],
            ["forward", "forward/DistributedDataParallel.forward", "optimizer", "optimizer/Optimizer.step#SGD"],
            {"forward": "forward", "optimizer": "optimizer"},
        ),
        # The same range within another one.
        (["a/h2d", "a/attention"], ["attention", "h2d"], {"a/h2d": "h2d", "a/attention": "attention"}),
        # Two that may be meant are none.
        (["forward"], ["forward_a", "forward_b"], {}),
    ],
)  # fmt: skip
def test_phases_are_paired_across_loaders(before: list[str], after: list[str], pairs: dict[str, str]) -> None:
    sides = [_phase(name) for name in before], [_phase(name) for name in after]
    found = pair_phases(*sides)
    assert {one.name: two.name for one, two in found if one is not None and two is not None} == pairs
    alone = {row.name for pair in found for row in pair if row is not None and None in pair}
    assert alone == {*before, *after} - {*pairs, *pairs.values()}
    mirrored = pair_phases(*reversed(sides))
    assert {two.name: one.name for one, two in mirrored if one is not None and two is not None} == pairs


def test_what_is_outside_of_other_phases_is_not_judged(tmp_path: Path) -> None:
    def ranges(*names: str) -> Report:
        made = Capture()
        for step in range(9):
            begin = step * 10_000
            made.range("step", begin, begin + 10_000)
            for place, name in enumerate(names):
                made.range(name, begin + 4_000 * place, begin + 4_000 * (place + 1))
            made.kernel(begin + 100, begin + 9_900, launched=begin + 10)
        return analyze_trace(made.trace(tmp_path))

    rows = {row.name: row for row in compare_reports(ranges("forward", "backward"), ranges("forward")).phases}
    assert rows["outside, host"].told == "of other phases"
    assert not rows["outside, host"].moved
    assert rows["backward, host"].told == "only before"
    assert not rows["forward, host"].moved


def test_kernels_in_graphs_that_one_side_traced_as_a_whole_are_not_gone(tmp_path: Path) -> None:
    report = _report(tmp_path, {_GEMM: (4, 1000), _FLASH: (2, 500)})
    devices = tuple(structs.replace(device, graphs=8) for device in report.devices)
    whole = structs.replace(report, devices=devices, kernels=report.kernels[:1])
    for one, two, word in ((report, whole, "second"), (whole, report, "first")):
        found = compare_reports(one, two)
        assert found.kernels == found.kinds == ()
        assert found.work_ratio is None
        assert any(
            note.startswith(f"the {word} has CUDA graphs that were traced as a whole") for note in found.notes
        )
        assert found.step is not None, "the step is compared all the same"
    assert compare_reports(whole, whole).kernels

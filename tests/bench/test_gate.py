"""Baselines, histories and what CI is told, on made-up runs; tests/cli/bench/test_bench_gate.py has real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from llmtop.bench.baseline import counted_runs, read_baseline, save_baseline
from llmtop.bench.comparing import choose_metric, compare_runs
from llmtop.bench.gate import Gate, GateOptions
from llmtop.bench.history import read_history
from llmtop.bench.limits import parse_limit
from llmtop.bench.model.fact_differences import fact_differences
from llmtop.bench.model.results import BenchRun
from llmtop.bench.output.document import bench_document, summary_document
from llmtop.bench.output.junit import render_junit
from llmtop.bench.output.tables import comparison_table, ranking_table
from llmtop.bench.rank import rank_values
from llmtop.bench.statistics.step_statistics import metric_named
from llmtop.document.markdown import write_markdown
from llmtop.document.text import write_text
from llmtop.errors import UnusableInput
from tests.support.bench_runs import made_bench, made_runs

COMMAND = ("python", "train.py")


def _saved(path: Path, step: float = 0.1, **more: object) -> Path:
    save_baseline(made_bench(made_runs(step, 5, seed=1), **more), path, path.parent)
    return path


def _judged(tmp_path: Path, options: GateOptions, runs: list[BenchRun], **more: object) -> tuple[int, object]:
    found = made_bench(runs, **more)
    gate = Gate(options, COMMAND, 5)
    code = gate.judge(found, tmp_path, print)
    gate.write(found)
    return code, found.comparison


@pytest.mark.parametrize(
    ("step", "between", "decision", "code"),
    [
        (0.1, 0.003, "ok", 0),
        (0.12, 0.003, "regression", 1),
        (0.08, 0.003, "improvement", 0),
        (0.1, 0.1, "undecidable", 3),
    ],
)
def test_runs_are_held_to_a_baseline(
    tmp_path: Path, step: float, between: float, decision: str, code: int
) -> None:
    options = GateOptions(
        baseline=_saved(tmp_path / "b.json"),
        fail_over=(parse_limit("5"),),
        summary=tmp_path / "s.md",
        junit=tmp_path / "j.xml",
    )
    ended, comparison = _judged(tmp_path, options, made_runs(step, 5, seed=7, between=between))
    assert ended == code
    assert comparison is not None
    assert comparison.decision == decision
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["comparison"]["decision"] == decision
    text = (tmp_path / "s.md").read_text()
    assert text.splitlines()[0].endswith(f"llmtop bench: {decision}")
    assert "| tokens/s |" in text
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert suite.get("tests") == "6"
    expected = {"regression": ("1", "0"), "undecidable": ("0", "1")}.get(decision, ("0", "0"))
    assert (suite.get("failures"), suite.get("errors")) == expected


def test_without_a_limit_the_change_is_told_and_nothing_decided(tmp_path: Path) -> None:
    options = GateOptions(baseline=_saved(tmp_path / "b.json"))
    code, comparison = _judged(tmp_path, options, made_runs(0.12, 5, seed=2))
    assert code == 0
    assert comparison is not None
    assert comparison.decision == "none"
    assert comparison.reason.endswith("more than the noise")


def test_two_commands_in_turns_are_pairs(tmp_path: Path) -> None:
    runs = made_runs(0.1, 5, seed=1, label="baseline") + made_runs(0.12, 5, seed=2, label="candidate")
    options = GateOptions(against="python 'train before.py'", fail_over=(parse_limit("5"),))
    assert Gate(options, COMMAND, 5).variants[0].command == ("python", "train before.py")
    code, comparison = _judged(tmp_path, options, runs)
    assert code == 1
    assert comparison is not None
    assert comparison.paired


def test_a_history_is_judged_from_the_fourth_bench_on_and_a_regression_stays_out_of_it(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    options = GateOptions(history=path, fail_over=(parse_limit("5"),))
    seen = [
        _judged(tmp_path, options, made_runs(step, 3, seed=seed))[0]
        for seed, step in enumerate((0.1, 0.101, 0.1, 0.1, 0.13, 0.13))
    ]
    assert seen == [0, 0, 0, 0, 1, 1]
    decisions = [entry.decision for entry in read_history(path)]
    assert decisions == ["none", "none", "none", "ok", "regression", "regression"]


def test_a_history_leaves_out_other_machines_and_looks_at_the_last_ones(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    options = GateOptions(history=path, fail_over=(parse_limit("5"),), window=3)
    for seed in range(3):
        _judged(tmp_path, options, made_runs(0.05, 3, seed=seed), environment={"GPUs": "8 x B200"})
    code, comparison = _judged(tmp_path, options, made_runs(0.1, 3, seed=9))
    assert code == 0
    assert comparison is not None
    assert comparison.decision == "none"
    assert "3 more are of another environment" in comparison.reason


@pytest.mark.parametrize("text", ["garbage", '{"time": 1}\n', "[]", "\x00"])
def test_a_damaged_history_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(text)
    with pytest.raises(UnusableInput, match="line 1"):
        read_history(path)


@pytest.mark.parametrize("text", ["", "garbage", "[]", '{"schema": 1}', '{"state": 5}', "\x00\xff"])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UnusableInput, match=r"b\.json"):
        read_baseline(path)


def test_a_folder_of_a_bench_is_a_baseline_too_and_one_of_a_newer_llmtop_is_not(tmp_path: Path) -> None:
    found = made_bench(made_runs(0.1, 3))
    (tmp_path / "metrics.json").write_bytes(msgspec.json.encode(found))
    assert len(counted_runs(read_baseline(tmp_path))) == 3
    found.schema = 99
    (tmp_path / "metrics.json").write_bytes(msgspec.json.encode(found))
    with pytest.raises(UnusableInput, match="newer llmtop"):
        read_baseline(tmp_path)


def test_a_baseline_is_written_over_with_force_alone_and_never_by_a_regression(tmp_path: Path) -> None:
    path = _saved(tmp_path / "b.json")
    with pytest.raises(UnusableInput, match="--force"):
        Gate(GateOptions(save_baseline=path), COMMAND, 5)
    before = path.read_bytes()
    options = GateOptions(baseline=path, save_baseline=path, force=True, fail_over=(parse_limit("5"),))
    assert _judged(tmp_path, options, made_runs(0.13, 5, seed=2))[0] == 1
    assert path.read_bytes() == before
    assert _judged(tmp_path, options, made_runs(0.1, 5, seed=2))[0] == 0
    assert path.read_bytes() != before


def test_another_environment_is_said_and_with_strict_refused_but_not_for_commit_or_host(tmp_path: Path) -> None:
    path = _saved(tmp_path / "b.json")
    strict = Gate(GateOptions(baseline=path, strict=True), COMMAND, 5)
    strict.check_environment({"GPUs": "1 x H200", "driver": "580.1", "commit": "def", "host": "there"})
    with pytest.raises(UnusableInput, match=r"driver: 580\.1 -> 570\.2"):
        strict.check_environment({"GPUs": "1 x H200", "driver": "570.2", "commit": "abc", "host": "here"})
    Gate(GateOptions(baseline=path), COMMAND, 5).check_environment({})
    options = GateOptions(baseline=path, fail_over=(parse_limit("5"),))
    _, comparison = _judged(tmp_path, options, made_runs(0.1, 5), environment={"GPUs": "1 x H100"})
    assert comparison is not None
    assert [one.name for one in comparison.differs if one.matters] == ["GPUs", "driver"]
    assert fact_differences({"a": "1"}, {"a": "1"}) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GateOptions(fail_over=(parse_limit("5"),)), "--fail-over needs"),
        (GateOptions(against="x", vary=("A=1,2",)), "--against and --vary"),
        (GateOptions(vary=("A=1,2", "B=1,2")), "one parameter"),
        (GateOptions(strict=True), "--strict"),
        (GateOptions(capture=True), "--capture-on-regression"),
        (GateOptions(against="'x"), "--against 'x"),
        (GateOptions(against=" "), "--against"),
        (GateOptions(metric="speed"), "'speed'"),
        (GateOptions(summary=Path("/nowhere/at/all.md")), "--summary"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_first_run(options: GateOptions, said: str) -> None:
    with pytest.raises(UnusableInput, match=said):
        Gate(options, COMMAND, 5)


def test_one_run_is_refused_where_it_would_be_compared_and_undecidable_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="--runs 1"):
        Gate(GateOptions(against="x"), COMMAND, 1)
    tokens = metric_named("tokens_per_s")
    found = compare_runs(made_runs(0.1, 5), made_runs(0.1, 1), against="b", metric=tokens, limit=5.0)
    assert found.decision == "undecidable"
    assert "1 run of the candidate" in found.reason


def test_the_metric_is_the_first_rate_that_all_have_and_another_must_be_there() -> None:
    runs = made_runs(0.1, 3)
    bare = [
        msgspec.structs.replace(run, figures=msgspec.structs.replace(run.figures, tokens_per_s=None))
        for run in runs
    ]
    assert choose_metric(None, runs).name == "tokens_per_s"
    assert choose_metric(None, runs, bare).name == "steps_per_s"
    with pytest.raises(
        UnusableInput,
        match=r"--metric mfu: not every run has this metric; metrics of all runs: "
        ".*p95",
    ):
        choose_metric(metric_named("mfu"), runs)


def test_a_bench_that_failed_is_told_to_ci_as_well(tmp_path: Path) -> None:
    runs = made_runs(0.1, 2)
    crashed = msgspec.structs.replace(
        runs[1], ended="crashed", window=None, exit_code=7, notes=["it ended with <7> | \x1b[1m"]
    )
    found = made_bench([runs[0], crashed], state="failed")
    root = ElementTree.fromstring(render_junit(found))
    assert root[0].get("errors") == "1"
    text = write_markdown(summary_document(found))
    assert "llmtop bench: failed" in text
    assert "\x1b" not in text
    assert (
        Gate(GateOptions(baseline=_saved(tmp_path / "b.json"), fail_over=(parse_limit("5"),)), COMMAND, 5).judge(
            found, tmp_path, print
        )
        == 3
    )


def test_the_text_fits_a_narrow_terminal() -> None:
    runs = made_runs(0.1, 5, seed=1), made_runs(0.12, 5, seed=2)
    found = made_bench(runs[1])
    tokens = metric_named("tokens_per_s")
    found.comparison = compare_runs(*runs, against="b.json", metric=tokens, limit=5.0)
    for width in (60, 80):
        lines = write_text(bench_document(found), width).splitlines()
        assert "decision: regression" in lines
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("text", "metric", "percent"),
    [
        ("5", None, 5.0),
        ("5%", None, 5.0),
        ("tokens/s=3", "tokens_per_s", 3.0),
        ("p95=2ms", "step_seconds_p95", 2.0),
        ("p95 = 500 us", "step_seconds_p95", 0.5),
        ("step_seconds_mean=1e-3s", "step_seconds_mean", 1.0),
        ("mfu=3%", "mfu_pct", 3.0),
    ],
)
def test_a_limit_is_in_percent_or_in_the_figure_s_unit(text: str, metric: str | None, percent: float) -> None:
    limit = parse_limit(text)
    assert (limit.metric.name if limit.metric else None) == metric
    assert limit.percent_of(0.1) == pytest.approx(percent)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "'x' is not a limit"),
        ("-1", "'-1' is not a limit"),
        ("1.2.3", "is not a limit"),
        ("2ms", "ms is not a unit of a limit without the name of a metric; use %"),
        ("tokens/s=3ms", "ms is not a unit of tokens/s; use %"),
        ("p95=2GiB", "GiB is not a unit of step p95; use %, s, ms"),
        ("p94=2", "--fail-over: there is no metric 'p94'"),
        ("=2", "there is no metric ''"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnusableInput) as refused:
        parse_limit(text)
    assert said in str(refused.value)


def test_the_worst_of_several_limits_decides(tmp_path: Path) -> None:
    path = _saved(tmp_path / "b.json")
    slower = made_runs(0.106, 5, seed=7)
    for texts, decision, code, decisions in (
        (("tokens/s=10", "p95=20ms"), "ok", 0, ["ok", "ok"]),
        (("tokens/s=10", "p95=2ms"), "regression", 1, ["ok", "regression"]),
        (("10", "mean=4ms"), "regression", 1, ["ok", "regression"]),
    ):
        limits = tuple(parse_limit(text) for text in texts)
        ended, comparison = _judged(tmp_path, GateOptions(baseline=path, fail_over=limits), slower)
        assert comparison is not None
        assert (comparison.decision, ended) == (decision, code)
        assert [one.decision for one in comparison.limits] == decisions
        assert [one.limit for one in comparison.limits] == list(texts)


def test_two_limits_of_one_figure_are_refused(tmp_path: Path) -> None:
    limits = (parse_limit("p95=2ms"), parse_limit("p95=3%"))
    with pytest.raises(UnusableInput, match="two limits for step p95"):
        Gate(GateOptions(baseline=_saved(tmp_path / "b.json"), fail_over=limits), COMMAND, 5)


def _figure_of(text: str) -> float:
    """A figure as it is written: "97.8 ms", "19.8k", "8.913"."""
    number, factor = re.fullmatch(r"([\d.,]+)\s*(ms|µs|s|k|M|)", text).groups()  # type: ignore[union-attr]
    return float(number.replace(",", "")) * {"ms": 1e-3, "µs": 1e-6, "k": 1e3, "M": 1e6}.get(factor, 1.0)


def _change_of(text: str) -> float:
    """A change as it is written, in percent worse."""
    if text == "the same":
        return 0.0
    number, word = re.fullmatch(r"([\d.]+) % (worse|better)", text).groups()  # type: ignore[union-attr]
    return float(number) if word == "worse" else -float(number)


def _skewed(step: float, seed: int) -> list[BenchRun]:
    """Runs with one far from the others, whose median and mean lie far apart."""
    return [*made_runs(step, 2, seed=seed), *made_runs(2.5 * step, 1, seed=seed + 1)]


@pytest.mark.parametrize("paired", [False, True])
def test_the_change_of_each_row_is_that_of_the_two_figures_beside_it(paired: bool) -> None:
    before, after = made_runs(0.1, 3, seed=1, between=0.2), _skewed(0.1, seed=2)
    tokens = metric_named("tokens_per_s")
    found = compare_runs(before, after, against="b", metric=tokens, limit=None, paired=paired)
    rows = comparison_table(found).rows
    assert len(rows) == 6
    for row in rows:
        title, baseline, candidate, change, interval = row[:5]
        one, other = _figure_of(baseline), _figure_of(candidate)
        worse = 100.0 * ((one / other if "/s" in title else other / one) - 1.0)
        assert _change_of(change) == pytest.approx(worse, abs=1.0), title
        low, high = (float(bound) for bound in interval.rstrip("%").split(" … "))
        assert low < worse < high


def test_the_distance_of_each_value_is_that_of_the_figures_beside_it() -> None:
    runs = {"workers=0": made_runs(0.1, 3, seed=1), "workers=2": _skewed(0.1, seed=4)}
    first, second = ranking_table(rank_values(runs, metric_named("tokens_per_s"))).rows
    worse = 100.0 * (_figure_of(first[1]) / _figure_of(second[1]) - 1.0)
    assert worse > 20.0
    assert _change_of(second[2]) == pytest.approx(worse, abs=1.0)


def test_the_change_since_a_history_is_that_of_the_two_figures_beside_it(tmp_path: Path) -> None:
    options = GateOptions(history=tmp_path / "speed.jsonl")
    for step in (0.06, 0.07, 0.10, 0.11):
        _judged(tmp_path, options, made_runs(step, 3, seed=3))
    _, comparison = _judged(tmp_path, options, _skewed(0.09, seed=5))
    assert comparison is not None
    row = comparison_table(comparison).rows[0]
    worse = 100.0 * (_figure_of(row[1]) / _figure_of(row[2]) - 1.0)
    assert _change_of(row[3]) == pytest.approx(worse, abs=1.0)

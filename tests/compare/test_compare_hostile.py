"""Reports are files that come from anywhere: whatever their figures are, they are compared or refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.compare.compare import compare_reports, is_regression, is_undecided
from llmtop.report.model import Report, from_json, to_json
from llmtop.trace.files.open import open_traces
from tests.support import written
from tests.support.traces import Capture, write_chrome

_ODD: tuple[Any, ...] = (0, 0.0, -1, 3, 10**18, 1e308, -1e308, 1e-308, 1e200, 0.5, None, "", "\x1b[31m", "\u202e")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two ranks with operators, phases, copies and a collective."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(2):
        made = Capture(pid=100 + rank, device=rank)
        for step in range(6):
            at = step * 10_000
            made.range("step", at, at + 10_000)
            made.range("forward", at, at + 3_000)
            made.range("dataload", at + 3_000, at + 3_000 + 2_000 * rank)
            made.operator("aten::mm", at + 20, at + 60)
            made.copy(at + 5, at + 15, 1 << 20, launched=at)
            made.kernel(at + 100, at + 5_000, launched=at + 30, name="gemm_kernel")
            made.kernel(at + 5_000, at + 8_000, launched=at + 80, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        write_chrome(folder / f"rank{rank}.json", made, distributedInfo={"rank": rank, "world_size": 2})
    found = analyze_trace(open_traces(sorted(folder.iterdir())))
    assert found.operators
    assert found.collectives
    assert len(found.devices) == 2
    return msgspec.structs.replace(found, timeline=None, ranges=(), longest_gaps=())


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in decoded JSON a single value stands."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("seed", range(4))
def test_any_figures_are_compared(report: Report, seed: int) -> None:
    chance, refused, compared = random.Random(seed), 0, 0
    plain = to_json(report)
    places = list(_places(json.loads(plain)))
    for _ in range(120):
        changed = json.loads(plain)
        for place in chance.sample(places, chance.choice((1, 3, 20))):
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = chance.choice(_ODD)
        try:
            odd = from_json(json.dumps(changed))
        except msgspec.ValidationError:
            refused += 1
            continue
        for one, other in ((odd, report), (report, odd), (odd, odd)):
            found = compare_reports(one, other)
            for text in (written.comparison(found), written.short_comparison(found)):
                assert all(line.isprintable() for line in text.splitlines())
            msgspec.json.encode(found)
            is_regression(found, 5.0)
            is_undecided(found, 5.0)
        compared += 1
    assert min(refused, compared) > 10


def test_a_report_beside_it_is_compared_as_ever(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(to_json(report))
    assert compare_reports(report, from_json((tmp_path / "report.json").read_bytes())).same

"""What the driver, the system or the training does not say never raises an alert."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmtop.model.snapshot import Gpu, Phase, Rank, Snapshot, Step
from llmtop.rules.engine import Rules
from tests.support import import_data
from tests.support.examples import EXAMPLES

ONE, TWO = import_data.DATA / "h200" / "live", import_data.DATA / "h200x2" / "live"
WHEN_WHOLE: dict[tuple[Path, str], set[str]] = {
    (ONE, "healthy"): set(),
    (ONE, "gemm"): set(),
    (ONE, "idle"): set(),
    (TWO, "healthy"): set(),
    (ONE, "mem_bound"): {"memory_bound"},
    (ONE, "spin"): {"low_power_full_util"},
    (ONE, "launch_bound"): {"launch_bound"},
    (ONE, "h2d_bound"): {"h2d_bound", "input_bound"},  # a copy within the loader, where PCIe's rate is absent
    (TWO, "straggler"): {"straggler"},
}


def optional(struct: type[Gpu] | type[Rank] | type[Step] | type[Phase]) -> list[str]:
    """The fields that may be absent, with None for it."""
    fields = zip(reversed(struct.__struct_fields__), reversed(struct.__struct_defaults__), strict=False)
    return sorted(name for name, default in fields if default is None)


@cache
def series(folder: Path, name: str) -> list[Snapshot]:
    return list(import_data.load(folder, name, interval=0.5))


def without(whole: Snapshot, gpu: frozenset[str], rank: frozenset[str], step: frozenset[str]) -> Snapshot:
    none = {kind: dict.fromkeys(names) for kind, names in (("gpu", gpu), ("rank", rank), ("step", step))}
    return replace(
        whole,
        gpus=tuple(replace(one, **none["gpu"]) for one in whole.gpus),
        ranks=tuple(
            replace(one, new_steps=tuple(replace(each, **none["step"]) for each in one.new_steps), **none["rank"])
            for one in whole.ranks
        ),
    )


def some(struct: type[Gpu] | type[Rank] | type[Step]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(optional(struct)))


@pytest.mark.parametrize(("folder", "name"), WHEN_WHOLE, ids=lambda value: getattr(value, "parent", value))
@settings(max_examples=EXAMPLES, deadline=None)
@given(gpu=some(Gpu), rank=some(Rank), step=some(Step))
def test_a_series_with_holes_raises_nothing_that_the_whole_one_would_not(
    folder: Path, name: str, gpu: frozenset[str], rank: frozenset[str], step: frozenset[str]
) -> None:
    rules, raised = Rules(), set()
    for whole in series(folder, name):
        alerts = rules.apply(without(whole, gpu, rank, step)).alerts
        raised |= {alert.id for alert in alerts}
        assert all(value is not None for alert in alerts for value in alert.evidence.values())
    assert raised - {"power_capped"} <= WHEN_WHOLE[folder, name]


def test_without_any_value_nothing_is_raised() -> None:
    for folder, name in WHEN_WHOLE:
        rules = Rules()
        for whole in series(folder, name):
            bare = without(whole, *(frozenset(optional(struct)) for struct in (Gpu, Rank, Step)))
            assert rules.apply(bare).alerts == ()

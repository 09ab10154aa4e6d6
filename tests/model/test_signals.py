"""The table of signals: it is whole, each output has what it says, and no output says it again."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pynvml
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from collectors.dcgm.activity import parse_activity
from collectors.exporter.gpu_series import LastXids, families
from llmtop.bench.run.gpu_csv import GpuCsv
from llmtop.cli.live.snapshot_text import render
from llmtop.model import signal_text
from llmtop.model.signals import BY_FIELD, CELLS, CHARTS, ONCE_ITEMS, SERIES, SIGNALS, Signal
from llmtop.model.snapshot import Gpu, to_json
from llmtop.rules.state.gpu import MEASURES
from tests.support.processes import REPOSITORY
from tests.support.snapshots import gpu, snapshot
from tui.paint.gpu_metrics import METRICS
from tui.panes import gpu_charts, node_table
from tui.state.history import History

NO_SIGNALS = {
    "index", "uuid", "name", "vendor", "pcie_source", "activity_source", "mig_parent_uuid", "mig_index",
    "mig_gpu_instance", "mig_compute_instance", "sampled_at", "error", "memory_is_system",
}  # fmt: skip
"""Fields of a GPU that say which GPU it is, or where a signal is from."""
UNITS = {
    "_pct": "%", "_watts": "W", "_joules": "J", "_c": "°C", "_mhz": "MHz", "_bytes": "B", "_bytes_per_s": "B/s",
    "_gen": "", "_width": "", "_reasons": "reasons",
}  # fmt: skip
COLUMNS = (
    "utilization.gpu [%]", "utilization.memory [%]", "memory.used [MiB]", "memory.total [MiB]", "power.draw [W]",
    "power.limit [W]", "temperature.gpu", "temperature.memory", "clocks.current.sm [MHz]", "clocks.max.sm [MHz]",
    "pcie.link.gen.current", "pcie.link.width.current", "clocks_event_reasons.active",
)  # fmt: skip
"""Of gpu.csv: a contract. More may come after them."""
EXPORTED = {
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %)",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "Memory utilization (in %)",
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W)",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "Power limit (in W)",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "Energy (in mJ)",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB)",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB)",
    "DCGM_FI_DEV_SM_CLOCK": "SM clock frequency (in MHz)",
    "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C)",
    "DCGM_FI_DEV_MEMORY_TEMP": "Memory temperature (in C)",
    "DCGM_FI_PROF_SM_ACTIVE": "Ratio of cycles an SM has work",
    "DCGM_FI_PROF_SM_OCCUPANCY": "Ratio of resident warps",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "Ratio of tensor cycles",
    "DCGM_FI_PROF_DRAM_ACTIVE": "Ratio of cycles with memory traffic",
}
"""Series of GPUs and their help: a contract. There may be more."""
OUTPUTS = {
    "collectors/dcgm/activity.py": {"sm_active_pct"},  # without it DCGM is asked
    "collectors/exporter/gpu_series.py": set(),
    "collectors/gpu/bounds.py": {"mem_used_bytes", "mem_total_bytes"},  # the one is at most the other
    "collectors/nvml/gpm.py": set(),
    "collectors/tpu/source.py": {"util_pct"},  # of a chip, not of a device
    "llmtop/bench/run/gpu_csv.py": set(),
    "llmtop/cli/live/snapshot_text.py": {
        "sm_clock_mhz", "clock_event_reasons", "sm_active_pct", "pcie_tx_bytes_per_s", "pcie_gen", "pcie_width",
    },  # what is written after a value
    "tui/paint/gpu_metrics.py": {"pcie_gen", "pcie_width"},  # what the link can carry
    "tui/panes/gpu_charts.py": set(),
}  # fmt: skip
"""Files that loop over the table, and the fields that they name nevertheless."""
READERS = {
    "analysis/roofline.py": {"SM active"},  # a counter of nsys
}
"""Files that name one signal for a purpose of their own, and what they name."""


def _full() -> Gpu:
    """A GPU that gives every signal."""
    values = {signal.field: 4.0 for signal in SIGNALS if signal.bounds}
    return gpu(0, **{**values, "clock_event_reasons": ("sw_power_cap",)})


def test_every_signal_of_a_gpu_has_one_row_and_every_row_a_field() -> None:
    fields = [signal.field for signal in SIGNALS]
    assert len(set(fields)) == len(fields)
    assert set(fields) == set(Gpu.__struct_fields__) - NO_SIGNALS
    named = {signal.total for signal in SIGNALS} | {cell.plus for _, cell in CELLS}
    named |= {series.less for _, series in SERIES} | set(MEASURES)
    assert named - {""} <= set(fields)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.field)
def test_a_row_is_sound(signal: Signal) -> None:
    suffix = max((end for end in UNITS if signal.field.endswith(end)), key=len)
    assert signal.unit == UNITS[suffix]
    assert "None" in str(get_type_hints(Gpu)[signal.field]), "absent is None"
    assert signal.bounds is None or signal.bounds[0] < signal.bounds[1]
    if signal.gpm:
        assert isinstance(getattr(pynvml, f"NVML_GPM_METRIC_{signal.gpm}"), int)
    if signal.chart:
        assert signal.chart.limit != "total" or signal.total
        assert len(signal.chart.label) <= len("mem temp")
    if signal.cell:
        assert len(signal.cell.title) <= signal.cell.width


def test_no_two_rows_share_a_name() -> None:
    for names in (
        [chart.key for _, chart in CHARTS],
        [cell.title for _, cell in CELLS],
        [series.name for _, series in SERIES],
        [(item.names["NVIDIA"], item.part) for _, item in ONCE_ITEMS if "NVIDIA" in item.names],
        *([name for signal in SIGNALS if (name := getattr(signal, kind))] for kind in ("gpm", "dcgm", "tpu")),
        *([name for signal in SIGNALS if (name := getattr(signal, kind))] for kind in ("column", "report")),
    ):
        assert len(set(names)) == len(names)


def test_every_row_has_a_source_and_a_collector_gives_only_fields_of_the_table() -> None:
    paths = ("nvml/fields.py", "nvml/device.py", "amd/fields.py")
    read = {
        name for path in paths for name in _constants(ast.parse((REPOSITORY / "collectors" / path).read_text()))
    }
    assert not [one.field for one in SIGNALS if not (one.gpm or one.dcgm or one.tpu or one.field in read)]
    ends = "|".join(sorted(UNITS.keys() - {"_c", "_gen", "_width", "_reasons", ""}, key=len, reverse=True))
    fields = {name for name in read if re.fullmatch(rf"[a-z_]+({ends})", name)}
    assert fields - {"mem_bytes", "sm_pct"} <= set(BY_FIELD), "those two are of a process"


def test_public_names_stay() -> None:
    assert tuple(signal.column for signal in SIGNALS if signal.column)[: len(COLUMNS)] == COLUMNS
    assert {series.name: series.help for _, series in SERIES}.items() >= EXPORTED.items()
    assert [signal.report for signal in SIGNALS if signal.report][:4] == [
        "util", "sm_active", "tensor_active", "dram_active",
    ]  # fmt: skip


def test_the_contracts_list_every_series_of_a_gpu() -> None:
    text = (REPOSITORY / "docs" / "contracts.md").read_text()
    assert not [series.name for _, series in SERIES if f"`{series.name}`" not in text]


@pytest.mark.parametrize("signal", [one for one in SIGNALS if one.dcgm], ids=lambda signal: signal.field)
def test_a_signal_of_dcgm_arrives_in_the_field_s_unit(signal: Signal) -> None:
    line = f'{signal.dcgm}{{gpu="0",UUID="GPU-1",modelName="NVIDIA A100"}} 0.5\n'
    value = 50.0 if signal.unit == "%" else 0.5
    assert parse_activity(line, 0.0) == {("GPU-1", ""): {signal.field: value}}


def test_every_chart_of_eight_gpus_has_a_history() -> None:
    history = History()
    gpus = tuple(replace(_full(), uuid=f"GPU-{index}") for index in range(8))
    history.add(snapshot(gpus=gpus))
    assert all(history.store.slot((gpu.uuid, chart.key)) is not None for gpu in gpus for _, chart in CHARTS)


class _Page:
    """The exporter's series of one GPU."""

    def collect(self) -> Iterator[Metric]:
        """Give them."""
        yield from families([_full()], "node", LastXids(), ())


def test_json_once_exporter_csv_and_screen_have_every_signal_that_the_table_gives_them(tmp_path: Path) -> None:
    one = snapshot(gpus=(_full(),))
    values = json.loads(to_json(one))["gpus"][0]
    assert not [field for field in BY_FIELD if values[field] is None]
    text = " ".join(render(one).split())
    for _, item in ONCE_ITEMS:
        if "NVIDIA" in item.names:
            assert re.search(rf" {re.escape(item.names['NVIDIA'])} (rx \S+ \S+ )?{item.part} ?\d", text), text
    assert "–" not in text.partition("GPU-00000000")[2], "each has its value"
    registry = CollectorRegistry()
    registry.register(_Page())
    page = generate_latest(registry).decode()
    for _, series in SERIES:
        assert f"# HELP {series.name} {series.help}\n" in page
        assert f"\n{series.name}{{" in page
    table = GpuCsv(tmp_path / "gpu.csv")
    table.add(one)
    table.close()
    head, row = (tmp_path / "gpu.csv").read_text().splitlines()
    assert head.split(", ")[4:] == [signal.column for signal in SIGNALS if signal.column]
    assert "[N/A]" not in row
    assert [metric.key for metric in gpu_charts.shown_metrics(_full())] == [chart.key for _, chart in CHARTS]
    assert "–" not in "".join(metric.text(_full()) + metric.axis(4.0) for metric in METRICS)
    assert {column.title for column in node_table.COLUMNS} >= {cell.title for _, cell in CELLS}


def test_every_unit_is_written_with_its_unit_and_a_dash_where_the_value_is_absent() -> None:
    for unit in {signal.unit for signal in SIGNALS} - {"reasons"}:
        assert signal_text.value_text(unit, None) == "–"
        assert signal_text.value_text(unit, 1.0) != signal_text.value_text(unit, 4e9)
    assert (signal_text.value_text("MHz", 1980.0), signal_text.axis_text("B/s", 2.0**30)) == (
        "1980 MHz",
        "1.07 GB",
    )


def _constants(tree: ast.AST) -> Iterator[str]:
    """Strings of the code without its docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def repeated_names(tree: ast.AST) -> set[str]:
    """Titles, names of series and columns, and makers' names of signals that this code types by hand."""
    rows = {series.name for _, series in SERIES} | {series.help for _, series in SERIES}
    rows |= {chart.title for _, chart in CHARTS if " " in chart.title}
    for signal in SIGNALS:
        rows |= {signal.column, signal.dcgm, signal.tpu, signal.gpm and f"NVML_GPM_METRIC_{signal.gpm}"}
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return ({*_constants(tree), *names} & rows) - {""}


def typed_fields(tree: ast.AST) -> set[str]:
    """Fields of the table that this code names: as a string, an attribute or a parameter."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {*_constants(tree), *attributes} & BY_FIELD.keys()


@pytest.mark.shape
def test_the_name_of_a_signal_is_typed_once() -> None:
    for package in ("llmtop", "collectors", "tui"):
        for path in (REPOSITORY / package).rglob("*.py"):
            if path.name != "signals.py":
                own = READERS.get("/".join(path.parts[-2:]), set())
                assert repeated_names(ast.parse(path.read_text())) == own, path


@pytest.mark.shape
@pytest.mark.parametrize("path", OUTPUTS)
def test_an_output_names_no_field_that_it_can_loop_over(path: str) -> None:
    assert typed_fields(ast.parse((REPOSITORY / path).read_text())) == OUTPUTS[path]


@pytest.mark.shape
def test_both_scans_find_a_plant() -> None:
    tree = ast.parse("'''util_pct'''\na = gpu.power_watts\nb = {'mem_used_bytes': 'Tensor cores active'}")
    assert typed_fields(tree) == {"power_watts", "mem_used_bytes"}
    assert repeated_names(tree) == {"Tensor cores active"}

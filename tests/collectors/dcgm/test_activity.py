"""SM, tensor and memory activity from a dcgm-exporter's text, where the driver gives none: on a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import collectors.dcgm.activity
import collectors.nvml.device
from collectors.dcgm.activity import VARIABLE, DcgmActivity, parse_activity
from llmtop import config
from llmtop.model.snapshot import Gpu, Host, Snapshot
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import Driver, Scenario, gpu_uuid, mig_uuid
from tests.support.pages import Serve, page
from tests.support.processes import wait_for
from tests.support.readings import gpu_when

LABELS = 'pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="node7"'
SECONDS = {"PATIENCE_SECONDS": 0.2, "POLL_SECONDS": 0.1, "RETRY_SECONDS": 0.1, "RETENTION_SECONDS": 1.0}


def line(name: str, uuid: str, value: object, more: str = "", stamp: str = "") -> str:
    """One as dcgm-exporter writes it."""
    return f'DCGM_FI_PROF_{name}{{gpu="0",UUID="{uuid}",{LABELS}{more}}} {value}{stamp}\n'


def text(uuid: str, scale: float = 1.0) -> str:
    values = {"SM_ACTIVE": 0.61, "SM_OCCUPANCY": 0.31, "PIPE_TENSOR_ACTIVE": 0.42, "DRAM_ACTIVE": 0.27}
    rates = {"PCIE_RX_BYTES": 9e9, "PCIE_TX_BYTES": 8e9, "NVLINK_RX_BYTES": 71e9, "NVLINK_TX_BYTES": 72e9}
    lines = [line(name, uuid, value * scale) for name, value in values.items()]
    return "".join([*lines, *(line(name, uuid, f"{value:.0f}") for name, value in rates.items())])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in SECONDS.items():
        monkeypatch.setattr(collectors.dcgm.activity, name, seconds)
    monkeypatch.setattr(collectors.nvml.device, "STALE_SECONDS", 30.0)  # a busy machine drops none of its values
    monkeypatch.delenv(VARIABLE, raising=False)


def shown(stage: DcgmActivity, source: OwnSource, when: Callable[[Snapshot], object]) -> Snapshot:
    """Snapshots of the driver's reading through the stage until one is as wanted."""

    def look() -> Snapshot | None:
        snapshot = stage(Snapshot(time=time.time(), host=Host(name="n"), gpus=source.latest().gpus))
        return snapshot if snapshot.gpus and when(snapshot) else None

    return wait_for(look, 30, "such a snapshot")


def no_gpm(nvml_stub: Driver, *slots: int) -> None:
    for slot in slots:
        nvml_stub.scenario.set(slot, gpm=0)
    nvml_stub.scenario.write()


def test_what_gpm_does_not_give_comes_from_dcgm_and_says_so(
    nvml_stub: Driver, source: OwnSource, serve: Serve
) -> None:
    no_gpm(nvml_stub, 2)
    url = serve(page((text(gpu_uuid(2)) + text(gpu_uuid(3), 0.5)).encode()))
    source.start()
    gpu_when(source, 2, lambda gpu: gpu.pcie_source == "nvml")
    snapshot = shown(DcgmActivity(url), source, lambda found: found.gpus[2].activity_source == "dcgm")
    gpu = snapshot.gpus[2]
    assert (gpu.sm_active_pct, gpu.sm_occupancy_pct) == pytest.approx((61, 31))
    assert (gpu.tensor_active_pct, gpu.dram_active_pct) == pytest.approx((42, 27))
    assert (gpu.nvlink_rx_bytes_per_s, gpu.nvlink_tx_bytes_per_s) == (71e9, 72e9)
    assert (gpu.pcie_source, gpu.pcie_rx_bytes_per_s) == ("nvml", 30_000_000), "the driver's own stays"
    beside = snapshot.gpus[3]
    assert (beside.activity_source, beside.sm_active_pct) == ("gpm", 94), "a GPU that has GPM keeps it"


def test_without_the_drivers_pcie_rates_those_of_dcgm_stand_in(serve: Serve) -> None:
    stage, gpu = DcgmActivity(serve(page(text("GPU-1").encode()))), Gpu(index=0, uuid="GPU-1", name="A100")

    def look() -> Gpu | None:
        found = stage(Snapshot(time=0.0, host=Host(name="n"), gpus=(gpu,))).gpus[0]
        return found if found.pcie_source else None

    found = wait_for(look)
    assert (found.pcie_source, found.pcie_rx_bytes_per_s, found.pcie_tx_bytes_per_s) == ("dcgm", 9e9, 8e9)


def test_an_exporter_that_ends_leaves_nothing_behind(nvml_stub: Driver, source: OwnSource, serve: Serve) -> None:
    there = threading.Event()
    there.set()
    url = serve(lambda handler: page(text(gpu_uuid(0)).encode(), 200 if there.is_set() else 500)(handler))
    no_gpm(nvml_stub, 0)
    source.start()
    stage = DcgmActivity(url)
    shown(stage, source, lambda found: found.gpus[0].sm_active_pct is not None)
    there.clear()
    gpu = shown(stage, source, lambda found: found.gpus[0].sm_active_pct is None).gpus[0]
    assert gpu.activity_source is gpu.nvlink_rx_bytes_per_s is None
    there.set()
    shown(stage, source, lambda found: found.gpus[0].sm_active_pct is not None)


def test_nobody_is_asked_while_the_driver_gives_it_all(nvml_stub: Driver, source: OwnSource, serve: Serve) -> None:
    asked: list[str] = []
    url = serve(lambda handler: asked.append(handler.path))
    source.start()
    for index in range(8):
        gpu_when(source, index, lambda gpu: gpu.sm_active_pct is not None)
    stage, rounds = DcgmActivity(url), iter(range(8))
    shown(stage, source, lambda _: time.sleep(SECONDS["PATIENCE_SECONDS"] / 4) or next(rounds) == 7)
    assert not asked


def test_it_is_asked_off_the_sampling_thread(serve: Serve) -> None:
    """An exporter that never answers holds no snapshot up."""
    held, reached = threading.Event(), threading.Event()

    def hang(_handler: object) -> None:
        reached.set()
        held.wait(30)

    stage = DcgmActivity(serve(hang))
    snapshot = Snapshot(time=0.0, host=Host(name="n"), gpus=(Gpu(index=0, uuid="GPU-1", name="A100"),))
    try:
        wait_for(lambda: stage(snapshot) is snapshot and reached.is_set())
        assert stage(snapshot) is snapshot, "while the question is open"
    finally:
        held.set()


def test_a_mig_instance_is_told_by_its_gpu_and_number(nvml_stub: Driver, source: OwnSource, serve: Serve) -> None:
    nvml_stub.now(Scenario(count=1).set(0, gpm=0).mig(0, 7, 1 << 30, 16 << 30))
    whole, part = line("SM_ACTIVE", gpu_uuid(0), 0.9), line("SM_ACTIVE", gpu_uuid(0), 0.2, ',GPU_I_ID="7"')
    source.start()
    stage = DcgmActivity(serve(page((whole + part).encode())))
    gpus = shown(stage, source, lambda found: len(found.gpus) == 2 and found.gpus[1].sm_active_pct).gpus
    assert gpus[1].uuid == mig_uuid(0, 7)
    assert [gpu.sm_active_pct for gpu in gpus] == [90, 20]


@pytest.mark.parametrize(
    "garbage",
    [
        line("SM_ACTIVE", "GPU-1", "140737488355328.0"),
        line("SM_ACTIVE", "GPU-1", "NaN"),
        line("SM_ACTIVE", "GPU-1", "+Inf"),
        line("SM_ACTIVE", "GPU-1", "none"),
        line("SM_ACTIVE", "GPU-1", -1),
        line("SM_ACTIVE", "", 0.5),
        line("SM_ACTIVE", "GPU-1", 0.5, stamp=" 900000"),
        'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-1" 0.5\n',
        "DCGM_FI_PROF_SM_ACTIVE 0.5\n",
        "<html>\n",
    ],
)
def test_what_cannot_be_or_is_stale_is_absent(garbage: str) -> None:
    assert parse_activity(garbage + line("DRAM_ACTIVE", "GPU-2", 0.5), now=1000.0) == {
        ("GPU-2", ""): {"dram_active_pct": 50.0}
    }


def test_a_stamp_of_now_is_none_of_stale() -> None:
    assert parse_activity(line("SM_ACTIVE", "GPU-1", 0.5, stamp=" 999000"), now=1000.0)


def test_where_to_ask_is_set_by_variable_or_configuration(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    url = serve(page(text("GPU-1").encode()))
    snapshot = Snapshot(time=0.0, host=Host(name="n"), gpus=(Gpu(index=0, uuid="GPU-1", name="A100"),))
    monkeypatch.setattr(config, "current", lambda: config.Config(dcgm=url))
    configured = DcgmActivity()
    assert wait_for(lambda: configured(snapshot).gpus[0].sm_active_pct)
    monkeypatch.setenv(VARIABLE, "node:9400")
    notes = DcgmActivity()(snapshot).host.notes
    assert len(notes) == 1
    assert "not the URL of a dcgm-exporter" in notes[0]

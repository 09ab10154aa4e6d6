"""From what the driver says to the alert that a person reads: collector and rules together."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import collectors.nvml.device
from collectors.gpu.poll_times import STALE_SECONDS
from llmtop.model.snapshot import Alert, Host, Snapshot
from llmtop.rules.engine import Rules
from tests.support.nvml_source import OwnSource
from tests.support.nvml_stub import Driver, Scenario, gpu_uuid
from tests.support.processes import wait_for


def alert_of(source: OwnSource, slot: int, alert_id: str, words: str = "") -> Alert:
    """Wait for the alert of one GPU; the others are judged beside it and have none."""
    rules = Rules()

    def look() -> Alert | None:
        at = {"time": time.time(), "monotonic": time.monotonic()}
        alerts = rules.apply(Snapshot(**at, host=Host(name="node"), gpus=source.latest().gpus)).alerts
        assert all(alert.gpu == gpu_uuid(slot) for alert in alerts), alerts
        return next((alert for alert in alerts if alert.id == alert_id and words in alert.summary), None)

    return wait_for(look, 60, f"{alert_id} of GPU {slot}")


@pytest.mark.slow("two bits at once; the others are one bit each", kept=("136-power brake of the power supply",))
@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x80, "power brake of the power supply"),
        (0x88, "power brake of the power supply"),
        (0x40, "thermal limit of the hardware"),
        (0x20, "thermal limit of the driver"),
        (0x8, "hardware slowdown"),
    ],
)
def test_a_gpu_that_is_slowed_down_is_told_with_the_cause(
    source: OwnSource, nvml_stub: Driver, bits: int, words: str
) -> None:
    nvml_stub.now(Scenario.eight_gpus().set(2, clock_event_reasons=bits, sm_clock_mhz=900))
    source.start()
    assert words in alert_of(source, 2, "throttled").summary


def _xid(number: int) -> Callable[[Scenario], Scenario]:
    return lambda scenario: scenario.xid(5, number)


@pytest.mark.slow(
    "one fault of each severity; the others take the same way, some of them for seconds",
    kept=(
        "-Xid 31-warning",
        "-Xid 45-info",
        "-GPU is lost-critical",
    ),
)
@pytest.mark.parametrize(
    ("fault", "words", "severity"),
    [
        (_xid(31), "Xid 31", "warning"),
        (_xid(45), "Xid 45", "info"),
        (_xid(63), "Xid 63", "warning"),
        (_xid(79), "Xid 79", "critical"),
        (_xid(95), "Xid 95", "critical"),
        (_xid(4242), "Xid 4242", "warning"),
        (lambda s: s.set(5, remap_pending=1), "waits to be remapped", "warning"),
        (lambda s: s.set(5, remap_failure=1), "could not be remapped", "critical"),
        (lambda s: s.set(5, ecc_uncorrected=2), "2 uncorrectable memory errors", "critical"),
        (lambda s: s.set(5, lost=1), "GPU is lost", "critical"),
        (lambda s: s.fail("nvmlDeviceGetUtilizationRates", 16, gpu=5), "must be reset", "critical"),
        (lambda s: s.hang("nvmlDeviceGetUtilizationRates", gpu=5), "has not answered", "critical"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_is_as_grave_as_what_is_lost(
    source: OwnSource,
    nvml_stub: Driver,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Scenario], Scenario],
    words: str,
    severity: str,
) -> None:
    source.start()
    wait_for(lambda: [gpu.power_limit_watts for gpu in source.latest().gpus if gpu.power_limit_watts][7:])
    if words == "has not answered":
        monkeypatch.setattr(collectors.nvml.device, "STALE_SECONDS", STALE_SECONDS)
    fault(nvml_stub.scenario).write()
    assert alert_of(source, 5, "gpu_error", words).severity == severity


@pytest.mark.slow("47 errors of a GPU; test_an_xid_is_shown_with_its_meaning_and_forgotten_after_a_while has two")
def test_a_storm_of_one_xid_drives_out_no_graver_one(source: OwnSource, nvml_stub: Driver) -> None:
    """Each channel of a killed program has an Xid 45 of its own."""
    source.start()
    wait_for(lambda: [gpu.power_limit_watts for gpu in source.latest().gpus if gpu.power_limit_watts][7:])
    nvml_stub.scenario.xid(5, 94)
    for number in (45,) * 40 + (13, 31, 32, 43, 69, 45):
        nvml_stub.scenario.xid(5, number)
    nvml_stub.scenario.write()
    assert alert_of(source, 5, "gpu_error", "Xid 43").severity == "critical"
    assert "Xid 94" in alert_of(source, 5, "gpu_error").summary

"""TPUs: what is made of what tpu-info and libtpu say, with a library in this process that fails at will."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import collectors.tpu.source
from collectors.base.periodic_thread import PeriodicThread
from collectors.driver.all_gpus import NO_TPU_BINDING, AllGpus
from collectors.tpu import presence
from collectors.tpu.library import USUAL_PORT, VARIABLE, FigureRefused, check_listener, ports
from collectors.tpu.source import METRICS, TpuSource, figures_by_device
from llmtop.errors import NotPossibleHere
from tests.support.other_user import listening_as
from tests.support.ports import free_port
from tests.support.processes import wait_for
from tests.support.readings import reading_when
from tests.support.tpu_stand_in import DUTY, GIB, HBM, TOTAL, USED, healthy, pci


class Library:
    """Answers as `collectors.tpu.library.TpuInfo` does."""

    def __init__(self) -> None:
        self.kind: tuple[str, int, int] = ("TPU v6e", 4, 1)
        self.says: dict[int, dict[str, Any]] = {USUAL_PORT: healthy()}
        self.has: dict[int, int] = {}
        self.fault: Exception | None = None
        self.go_on = threading.Event()

    def chips(self) -> tuple[str, int, int]:
        if self.fault is not None:
            raise self.fault
        return self.kind

    def owners(self) -> dict[int, int]:
        return self.has

    def figures(self, port: int, metric: str) -> dict[int, float]:
        told = self.says.get(port, FigureRefused("nothing answers at its port", nobody=True))
        one = told if isinstance(told, Exception) else told.get(metric, FigureRefused("NOT_FOUND", absent=True))
        if isinstance(one, Exception):
            raise one
        if one == "hang":
            self.go_on.wait(60)
            raise FigureRefused("late", late=True)
        return {int(key): value for key, value in one.items()}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(collectors.tpu.source, "DISCOVERY_SECONDS", 0.2)
    threads: list[PeriodicThread] = []

    def made(*arguments: Any) -> PeriodicThread:
        threads.append(PeriodicThread(*arguments))
        return threads[-1]

    monkeypatch.setattr(collectors.tpu.source, "PeriodicThread", made)
    library = Library()
    yield library
    library.go_on.set()
    for thread in threads:  # a source has no end of its own
        thread.stop()


@pytest.fixture
def source(library: Library) -> TpuSource:
    source = TpuSource(0.1, load=lambda: library)
    source.start()
    return source


OTHER = 4141


def told_when(source: TpuSource, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    return wait_for(
        lambda: told if holds(told := source.reading_values()) else None, what=f"{source.reading_values()}"
    )


def rows_with(field: str) -> Callable[[dict[str, Any]], object]:
    return lambda told: told.get("gpus") and all(field in row for row in told["gpus"])


def test_each_device_has_its_memory_duty_cycle_and_bandwidth(source: TpuSource, library: Library) -> None:
    library.has = {2: 4242}
    told = told_when(source, lambda told: rows_with("util_pct")(told) and told["uses"])
    row = told["gpus"][2]
    assert (row["name"], row["vendor"], row["index"], row["error"]) == ("TPU v6e", "Google", 2, None)
    assert (row["mem_used_bytes"], row["mem_total_bytes"]) == (12 * GIB, 32 * GIB)
    assert (row["util_pct"], row["dram_active_pct"]) == (52.5, 22.25)
    assert told["uses"] == [{"pid": 4242, "gpu_uuid": row["uuid"]}]
    assert len({row["uuid"] for row in told["gpus"]}) == 4
    assert told["notes"] == ()
    assert told["settled"]
    assert set(METRICS.values()) == {TOTAL, USED, DUTY, HBM}


def test_the_duty_cycle_of_a_chip_is_that_of_both_its_devices(source: TpuSource, library: Library) -> None:
    library.kind, library.says[USUAL_PORT] = ("TPU v3", 4, 2), healthy(8, 4)
    library.has = {1: 7}
    told = told_when(source, lambda told: len(told.get("gpus", ())) == 8 and rows_with("util_pct")(told))
    assert [row["util_pct"] for row in told["gpus"]] == [50.5, 50.5, 51.5, 51.5, 52.5, 52.5, 53.5, 53.5]
    told = told_when(source, lambda told: told["uses"])
    assert [use["gpu_uuid"] for use in told["uses"]] == [told["gpus"][n]["uuid"] for n in (2, 3)]


def test_nothing_is_settled_before_the_first_answer_or_its_time(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors.tpu.source, "FIRST_DISCOVERY_SECONDS", 0.0)  # a busy machine loads for longer
    library.says[USUAL_PORT][TOTAL] = "hang"
    source = TpuSource(0.1, load=lambda: library)
    source.start()
    assert not told_when(source, lambda told: told["gpus"])["settled"]
    library.go_on.set()
    told = told_when(source, lambda told: told["settled"])
    assert {row["error"] for row in told["gpus"]} == {f"late ({TOTAL})"}


@pytest.mark.parametrize("lost", [TOTAL, USED, DUTY, HBM])
def test_a_figure_that_this_libtpu_does_not_have_is_absent_and_no_error(
    lost: str, source: TpuSource, library: Library
) -> None:
    del library.says[USUAL_PORT][lost]
    field = next(name for name, metric in METRICS.items() if metric == lost)
    other = next(name for name in METRICS if name != field)
    told = told_when(source, lambda told: rows_with(other)(told) and all(field not in row for row in told["gpus"]))
    assert all(row["error"] is None for row in told["gpus"])
    assert told["notes"] == ()


def test_while_nobody_computes_the_chips_are_there_without_figures(source: TpuSource, library: Library) -> None:
    library.says = {}
    told = told_when(source, lambda told: told["notes"])
    assert len(told["gpus"]) == 4
    assert all("util_pct" not in row and row["error"] is None for row in told["gpus"])
    assert "nothing answers at port 8431" in told["notes"][0]
    library.says = {USUAL_PORT: healthy()}
    assert told_when(source, rows_with("util_pct"))["notes"] == ()


def test_a_port_of_another_user_is_ignored_and_said(source: TpuSource, library: Library) -> None:
    library.says[USUAL_PORT] = FigureRefused("port 8431 is ignored: user 7 listens there", ignored=True)  # type: ignore[assignment]
    told = told_when(source, lambda told: told["notes"])
    assert told["notes"] == ("port 8431 is ignored: user 7 listens there",)
    assert all("util_pct" not in row and row["error"] is None for row in told["gpus"])
    library.says = {USUAL_PORT: healthy()}
    assert told_when(source, rows_with("util_pct"))["notes"] == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as two users")
@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_only_the_users_of_the_tpus_are_trusted_unless_the_port_is_named(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    port = free_port()
    check_listener(port, ())  # nobody listens: the request says so
    with listening_as(OTHER, address, port, b""):
        with pytest.raises(FigureRefused, match=f"port {port} is ignored: user {OTHER} listens there") as refused:
            check_listener(port, ())
        assert refused.value.ignored
        check_listener(port, {OTHER})
        monkeypatch.setenv(VARIABLE, f"8431,{port}")
        check_listener(port, ())


def test_one_that_refuses_is_said_with_the_figure(source: TpuSource, library: Library) -> None:
    library.says[USUAL_PORT][DUTY] = FigureRefused("libtpu refuses with INTERNAL")
    told = told_when(source, lambda told: rows_with("mem_used_bytes")(told) and "util_pct" not in told["gpus"][0])
    assert all(row["error"] == f"libtpu refuses with INTERNAL ({DUTY})" for row in told["gpus"])
    assert all("util_pct" not in row for row in told["gpus"])


def test_one_that_hangs_loses_its_values_and_is_asked_again(
    source: TpuSource, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors.tpu.source, "STALE_SECONDS", 0.6)
    told_when(source, rows_with("util_pct"))
    library.says[USUAL_PORT][TOTAL] = "hang"
    told = told_when(source, lambda told: all("util_pct" not in row for row in told["gpus"]))
    began = time.monotonic()
    told = told_when(source, lambda told: told["gpus"][0]["error"])
    assert time.monotonic() - began < 60, "nobody waits for the call"
    assert "libtpu has not answered for" in told["gpus"][0]["error"]
    library.says[USUAL_PORT][TOTAL] = healthy()[TOTAL]
    library.go_on.set()
    assert told_when(source, rows_with("util_pct"))["gpus"][0]["error"] is None


def test_what_cannot_be_is_not_shown(source: TpuSource, library: Library) -> None:
    library.says[USUAL_PORT][DUTY] = {"0": 4294967295.0, "1": float("nan"), "2": -1.0, "3": 7.0}
    library.says[USUAL_PORT][USED] = {"0": 33 * GIB, "1": 1, "2": 2, "3": 3}
    told = told_when(source, lambda told: told.get("gpus") and told["gpus"][3].get("util_pct") == 7.0)
    assert [row.get("util_pct") for row in told["gpus"]] == [None, None, None, 7.0]
    assert "mem_used_bytes" not in told["gpus"][0], "more than there is"
    assert any("util_pct of TPU 0" in note for note in told["notes"])


@pytest.mark.parametrize("fault", [AssertionError("Expected one chip type, got two"), OSError("gone")])
def test_a_tpu_info_that_fails_is_told(fault: Exception, source: TpuSource, library: Library) -> None:
    library.fault = fault
    told = told_when(source, lambda told: told["notes"])
    assert "tpu-info cannot tell the chips" in told["notes"][0]
    library.fault = None
    told_when(source, rows_with("util_pct"))


def test_a_tpu_info_that_does_not_load_is_told(library: Library) -> None:
    def load() -> Any:
        raise TypeError("Descriptors cannot be created directly")

    source = TpuSource(0.1, load=load)
    source.start()
    told = told_when(source, lambda told: told["notes"])
    assert "tpu-info does not load (TypeError: Descriptors" in told["notes"][0]


def test_a_tpu_info_that_hangs_is_told(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.tpu.source, "FIRST_DISCOVERY_SECONDS", 0.3)

    def load() -> Any:
        library.go_on.wait(60)
        return library

    source = TpuSource(0.1, load=load)
    source.start()
    assert "tpu-info has not answered for" in told_when(source, lambda told: told["notes"])["notes"][0]
    library.go_on.set()
    assert told_when(source, rows_with("util_pct"))["notes"] == ()


def test_several_processes_have_a_port_each(source: TpuSource, library: Library) -> None:
    one = {metric: {"0": values["0"]} for metric, values in healthy().items()}
    other = {metric: {"0": values["1"]} for metric, values in healthy().items()}
    library.kind, library.says = ("TPU v4", 2, 1), {9001: one, 9002: other}
    library.has = {0: 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "9001,9002")
        told = told_when(source, lambda told: rows_with("util_pct")(told) and len(told["gpus"]) == 2)
    assert [row["util_pct"] for row in told["gpus"]] == [50.5, 51.5]


def test_whose_figures_they_are_is_never_guessed() -> None:
    assert figures_by_device([(0, 1.0), (3, 2.0)], 4) == {0: 1.0, 3: 2.0}
    assert figures_by_device([(8, 1.0), (9, 2.0)], 2) == {0: 1.0, 1: 2.0}, (
        "a machine of several counts all their devices"
    )
    assert figures_by_device([(0, 1.0), (0, 2.0)], 2) == {0: 1.0, 1: 2.0}, "each process counts its own"
    assert figures_by_device([(8, 1.0)], 2) == {}
    assert figures_by_device([(0, 1.0), (0, 2.0), (1, 3.0)], 2) == {}


def test_the_ports_are_those_of_who_computes_else_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    def environ(pid: int) -> dict[str, str]:
        if pid == 1:
            raise NotPossibleHere("gone")
        return {VARIABLE: "8431, 8432,x,99999"}

    assert ports(set(), environ) == [USUAL_PORT]
    assert ports({1}, environ) == [USUAL_PORT]
    assert ports({1, 2, 3}, environ) == [8431, 8432]
    monkeypatch.setenv(VARIABLE, "7000")
    assert ports({2}, environ) == [7000, 8431, 8432]


def test_a_tpu_is_told_from_google_s_other_devices_and_without_tpu_info_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "DEVICES", pci(tmp_path / "none", 0))
    assert presence.chip_count() == 0
    monkeypatch.setattr(presence, "DEVICES", pci(tmp_path / "four"))
    assert presence.chip_count() == 4
    monkeypatch.setattr(presence, "has_binding", lambda: False)
    source = AllGpus(0.1)
    source.start()
    try:
        assert reading_when(source, lambda reading: NO_TPU_BINDING in reading.notes)
    finally:
        source.close()

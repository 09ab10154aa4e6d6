"""Ports of InfiniBand and RoCE adapters, by the kernel's files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors.machine.host import HostSource
from collectors.machine.infiniband import Links
from tests.support.infiniband import Adapter


def test_a_port_is_described_and_data_counts_units_of_four_bytes(tmp_path: Path) -> None:
    Adapter(tmp_path)
    (port,) = Links(tmp_path).read()
    assert (port.device, port.port, port.layer, port.state) == ("mlx5_0", 1, "InfiniBand", "ACTIVE")
    assert port.rate_bytes_per_s == 50e9
    assert (port.received_bytes, port.sent_bytes) == (4000, 2000)
    assert (port.rx_bytes_per_s, port.tx_bytes_per_s) == (None, None), "a rate is of two"
    assert port.errors["out_of_sequence"] == 7
    assert port.errors["symbol_error"] == 0
    assert "rnr_nak_retry_err" not in port.errors, "the driver has no such counter: absent is no 0"


def test_rates_are_of_two_reads_and_absent_when_a_counter_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    adapter, links = Adapter(tmp_path), Links(tmp_path)
    links.read()
    now[0] += 2.0
    adapter.set("counters", {"port_rcv_data": 1000 + 5_000_000_000, "port_xmit_data": 100})
    (port,) = links.read()
    assert port.rx_bytes_per_s == 10e9
    assert port.tx_bytes_per_s is None, "the adapter was started again"


def test_ports_that_are_down_or_roce_and_what_a_driver_refuses(tmp_path: Path) -> None:
    Adapter(tmp_path, "mlx5_1", layer="Ethernet").describe(rate="200 Gb/sec (4X HDR)")
    down = Adapter(tmp_path, "mlx5_0")
    down.describe(state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    down.set("counters", {"port_rcv_data": "N/A (no PMA)", "symbol_error": "-1"})
    first, second = Links(tmp_path).read()
    assert (first.state, first.rate_bytes_per_s, first.received_bytes) == ("DOWN", 1.25e9, None)
    assert "symbol_error" not in first.errors
    assert (second.layer, second.rate_bytes_per_s) == ("Ethernet", 25e9)


def test_a_machine_without_adapters_has_none_and_files_that_go_are_absent(tmp_path: Path) -> None:
    assert Links(tmp_path / "missing").read() == ()
    (tmp_path / "mlx5_0").mkdir()
    (tmp_path / "mlx5_0" / "ports").mkdir()
    (tmp_path / "mlx5_0" / "ports" / "1").mkdir()
    (port,) = Links(tmp_path).read()
    assert (port.state, port.layer, port.received_bytes, port.errors) == (None, None, None, {})


def test_the_host_has_them(tmp_path: Path) -> None:
    Adapter(tmp_path)
    source = HostSource(60, links=tmp_path)
    source.read_once()
    assert [port.device for port in source.latest().links] == ["mlx5_0"]

"""A dcgm-exporter on the node, by its own text on a real socket; and what only looks like one."""

from __future__ import annotations

import http.server
import time

import pytest

from collectors.exporter.dcgm import DcgmExporter
from llmtop.errors import UnusableInput
from tests.support.pages import Answer, Serve, page
from tests.support.processes import wait_for

LABELS = 'pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"'
TEXT = "".join(
    f"# HELP {name} {help}\n# TYPE {name} gauge\n"
    + "".join(
        f'{name}{{gpu="{i}",UUID="GPU-604ac76c-000{i}",{LABELS},{host}="node7"}} {value}\n'
        for i, host in ((0, "Hostname"), (1, "hostname"))
    )
    for name, help, value in (
        ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", 1980),
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", 100),
        ("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", 0),
    )
)
"""As dcgm-exporter writes it (internal/pkg/rendermetrics), before and since its label was renamed."""


def asked(url: str) -> set[tuple[str, str]]:
    dcgm = DcgmExporter(url)
    assert dcgm.series() is None, "not known before it is asked"
    dcgm.start()
    try:
        return set(wait_for(lambda: [dcgm.series()] if dcgm.series() is not None else None)[0] or ())
    finally:
        dcgm.close()


def test_what_it_tells_is_known_by_gpu_and_name(serve: Serve) -> None:
    found = asked(serve(page(TEXT.encode())))
    assert found == {
        (f"GPU-604ac76c-000{i}", f"DCGM_FI_DEV_{name}")
        for i in (0, 1)
        for name in ("SM_CLOCK", "GPU_UTIL", "XID_ERRORS")
    }


def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b"# nothing\n")
        handler.wfile.flush()
        time.sleep(0.05)


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize(
    "answer",
    [
        page(b"<html>Grafana</html>"),
        page(b"node_load1 1\n"),
        page(TEXT.encode(), 500),
        page(b"\xff\xfe\x00"),
        slow,
        endless,
    ],
    ids=["html", "another exporter", "500", "bytes", "slow", "endless"],
)
def test_what_is_none_tells_nothing(serve: Serve, answer: Answer) -> None:
    assert asked(serve(answer)) == set()


def test_nobody_there_tells_nothing() -> None:
    assert asked("http://127.0.0.1:1/metrics") == set()


@pytest.mark.parametrize(
    "url", ["9400", "https://node:9400", "http://", "http://node:port/", "file:///etc/passwd"]
)
def test_what_is_no_url_is_a_sentence(url: str) -> None:
    with pytest.raises(UnusableInput, match="not the URL of a dcgm-exporter"):
        DcgmExporter(url)

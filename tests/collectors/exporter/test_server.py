"""The page over real sockets: who asks in odd ways, or only holds connections, keeps nobody else from it."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.exporter import host_names
from collectors.exporter.server import MAX_CONNECTIONS, MISDIRECTED, MetricsServer
from collectors.exporter.stage import ExportStage
from llmtop.errors import NotPossibleHere, UnusableInput
from tests.support.prometheus import fetch, of, samples
from tests.support.snapshots import gpu, snapshot


@pytest.fixture
def stage() -> ExportStage:
    """A stage that has one snapshot of a moment."""
    made = ExportStage(interval=3600.0)
    made(snapshot(time.time(), monotonic=time.monotonic(), gpus=(gpu(0, util_pct=50.0),)))
    return made


@pytest.fixture
def server(stage: ExportStage) -> Iterator[MetricsServer]:
    """It listens on a port of this machine."""
    listening = MetricsServer(stage, "127.0.0.1", 0)
    yield listening
    listening.close()


def is_served(server: MetricsServer) -> bool:
    return bool(of(samples(fetch(server.url)), "DCGM_FI_DEV_GPU_UTIL", gpu="0"))


def test_the_page_is_of_the_newest_snapshot(server: MetricsServer, stage: ExportStage) -> None:
    assert is_served(server)
    stage(snapshot(time.time(), monotonic=time.monotonic(), gpus=(gpu(0, util_pct=75.0),)))
    (one,) = of(samples(fetch(server.url)), "DCGM_FI_DEV_GPU_UTIL")
    assert one[2] == 75


def test_it_is_packed_for_whoever_asks(server: MetricsServer) -> None:
    request = urllib.request.Request(server.url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert "DCGM_FI_DEV_GPU_UTIL" in gzip.decompress(answer.read()).decode()


@pytest.mark.slow(
    "three requests stand for all",
    kept=(
        "zeros",
        "long line",
        "tls",
    ),
)
@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 200,
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET " + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\nx",
        b"GET /metrics?name[]="
        + b"x" * 5000
        + b" HTTP/1.1\r\nAccept: application/openmetrics-text;version=a.b.c\r\n\r\n",
        b"DELETE /../../etc/passwd HTTP/1.1\r\n\r\n",
        b"\x00" * 65536,
    ],
    ids=["tls", "no version", "odd version", "long line", "many headers", "post", "odd accept", "delete", "zeros"],
)
def test_whatever_is_asked_the_next_one_is_served(
    server: MetricsServer, said: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as odd:
        try:
            odd.sendall(said)
            odd.shutdown(socket.SHUT_WR)
            while odd.recv(1 << 16):
                pass
        except OSError:
            pass  # it hung up: that is an answer
    assert is_served(server)
    assert capfd.readouterr() == ("", ""), "the terminal may be a training's"


def test_other_places_and_methods_are_refused(server: MetricsServer) -> None:
    base = server.url.removesuffix("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(f"{base}/debug")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(urllib.request.Request(server.url, data=b"x", method="PUT"), timeout=20)
    assert is_served(server)


def status(server: MetricsServer, *hosts: str) -> str:
    """Of a request with these headers."""
    said = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as asking:
        asking.sendall(f"GET /metrics HTTP/1.1\r\n{said}Connection: close\r\n\r\n".encode())
        answer = asking.makefile("rb").read().decode()
    line = answer.partition("\r\n")[0].partition(" ")[2]
    assert ("llmtop_snapshot" in answer) == (line == "200 OK")
    return line


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is node7 of example.org, and its name service calls it gpu7.example.net and gpu7-ib0."""
    (tmp_path / "resolv.conf").write_text("# hers\nnameserver 10.0.0.1\nsearch example.org cluster.local.\n\n")
    monkeypatch.setattr(host_names, "RESOLVER", tmp_path / "resolv.conf")
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7")
    names = {"Node7": ("gpu7.example.net", ["GPU7-ib0"], ["10.1.2.3"])}
    monkeypatch.setattr(socket, "gethostbyaddr", names.__getitem__)


OWN = (
    "127.0.0.1",
    "10.1.2.3:9401",
    "[::1]:9401",
    "[fe80::1%25eth0]",
    "localhost:9401",
    "LOCALHOST.",
    "node7:9401",
)
OWN += ("node7.example.org", "node7.cluster.local:9401", "gpu7.example.net:9401", "gpu7-ib0")
FOREIGN = ("attacker.example", "attacker.example:9401", "localhost.attacker.example", "node7.attacker.example")
FOREIGN += ("127.0.0.1.attacker.example", "", "example.org", "[attacker.example]", "a:b:c", "\xff")


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_only_addresses_and_own_names_are_answered(stage: ExportStage, bound: str) -> None:
    """What Prometheus sends is what it dials; what a browser sends under DNS rebinding is the page's name."""
    server = MetricsServer(stage, bound, 0)
    try:
        assert {host: status(server, host) for host in OWN} == dict.fromkeys(OWN, "200 OK")
        assert {host: status(server, host) for host in FOREIGN} == dict.fromkeys(FOREIGN, MISDIRECTED)
        assert status(server) == "200 OK", "no browser leaves it out"
        assert status(server, "localhost", "attacker.example") == MISDIRECTED
    finally:
        server.close()


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    ("allowed", "answered"),
    [
        ("alias.example.com", {"alias.example.com", "Alias.Example.Com:80"}),
        (".example.com", {"alias.example.com", "Alias.Example.Com:80", "a.b.example.com"}),
        ("*", {"alias.example.com", "Alias.Example.Com:80", "a.b.example.com", "example.com", "notexample.com"}),
    ],
)
def test_further_names_can_be_allowed(stage: ExportStage, allowed: str, answered: set[str]) -> None:
    server = MetricsServer(stage, "127.0.0.1", 0, allowed=("another", allowed))
    hosts = ["alias.example.com", "Alias.Example.Com:80", "a.b.example.com", "example.com", "notexample.com"]
    try:
        assert {host for host in hosts if status(server, host) == "200 OK"} == answered
        assert status(server, "node7") == "200 OK"
    finally:
        server.close()


def test_a_scrape_by_this_machines_own_name_works(stage: ExportStage) -> None:
    server = MetricsServer(stage, "localhost", 0)
    try:
        assert status(server, f"{socket.gethostname()}:{server.port}") == "200 OK"
        assert status(server, f"localhost:{server.port}") == "200 OK"
    finally:
        server.close()


def test_many_connections_that_say_nothing_keep_nobody_out(server: MetricsServer) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(8 * MAX_CONNECTIONS)]
    try:
        assert is_served(server)
        held[0].settimeout(20)
        assert held[0].recv(1) == b"", "the oldest was dropped"
    finally:
        for one in held:
            one.close()


def test_a_port_that_is_taken_is_a_sentence(server: MetricsServer, stage: ExportStage) -> None:
    with pytest.raises(NotPossibleHere, match=f"port {server.port} of 127.0.0.1.*--port"):
        MetricsServer(stage, "127.0.0.1", server.port)
    assert is_served(server)


def test_an_address_that_is_none_is_a_sentence(stage: ExportStage) -> None:
    with pytest.raises(UnusableInput, match="no such address"):
        MetricsServer(stage, "no.such.host.invalid", 0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of its own signing for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(keyfile), "-out", str(certfile)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=240)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate")
    return certfile, keyfile


def test_behind_tls_a_connection_that_says_nothing_keeps_nobody_out(
    stage: ExportStage, certificate: tuple[Path, Path]
) -> None:
    certfile, keyfile = map(str, certificate)
    server = MetricsServer(stage, "127.0.0.1", 0, certfile, keyfile)
    try:
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        trusted = ssl.create_default_context(cafile=certfile)
        with urllib.request.urlopen(server.url, timeout=20, context=trusted) as answer:
            assert b"DCGM_FI_DEV_GPU_UTIL" in answer.read()
        with pytest.raises(OSError, match=r"(?i)certificate"):
            urllib.request.urlopen(server.url, timeout=20)
        with pytest.raises(OSError):  # noqa: PT011  plain HTTP gets no page
            fetch(server.url.replace("https", "http"))
        silent.close()
    finally:
        server.close()


def test_a_certificate_that_is_none_is_a_sentence(stage: ExportStage, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    with pytest.raises(UnusableInput, match="no certificate and key can be read"):
        MetricsServer(stage, "127.0.0.1", 0, str(tmp_path / "cert.pem"), None)
    with pytest.raises(UnusableInput, match="No such file"):
        MetricsServer(stage, "127.0.0.1", 0, str(tmp_path / "missing.pem"), None)

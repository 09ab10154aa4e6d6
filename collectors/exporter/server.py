"""HTTP server of the metrics page; any client that reaches the port may read it.

A connection has a thread and ten seconds. Of more than `MAX_CONNECTIONS` at once the oldest is dropped: idle
connections so cannot block a scrape. The page is made once per snapshot, but for the clock at its end.
"""

from __future__ import annotations

import gzip
import io
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer, gzip_accepted

from collectors.exporter.host_names import HostNames
from collectors.exporter.stage import ExportStage, clock_family
from collectors.exporter.text import page
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput

MAX_CONNECTIONS = 16
LIMIT_SECONDS = 10.0
"""How long a connection may say, or take, nothing."""
PATH = "/metrics"
MISDIRECTED = "421 Misdirected Request (llmtop export --allow-host NAME)"
"""Prometheus shows this line as the reason why a target is down."""
_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The one that everything reads, and that node_exporter's textfile collector wants."""
_StartResponse = Callable[[str, list[tuple[str, str]]], object]


class MetricsApp:
    """The page, as WSGI has it."""

    def __init__(self, stage: ExportStage, names: HostNames) -> None:
        self._stage = stage
        self._names = names
        self._lock = threading.Lock()
        self._made_of: tuple[int, bool] | None = None
        self._made = b""
        """The page without the clock."""

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ.get("HTTP_HOST") not in self._names:
            return _respond_text(
                start_response, MISDIRECTED, "this exporter does not answer to that Host; see --allow-host"
            )
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _respond_text(start_response, "405 Method Not Allowed", "GET it", ("Allow", "GET, HEAD"))
        if environ["PATH_INFO"] not in (PATH, "/"):
            return _respond_text(start_response, "404 Not Found", f"what there is, is at {PATH}")
        packed = gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", ""))
        body = self._body(packed)
        headers = [("Content-Type", _FORMAT), ("Content-Length", str(len(body)))]
        start_response("200 OK", [*headers, ("Content-Encoding", "gzip")] if packed else headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _body(self, packed: bool) -> bytes:
        with self._lock:
            state = self._stage.number, self._stage.is_stale
            if state != self._made_of:
                self._made_of, self._made = state, page(self._stage.collect())
            body = self._made + page([clock_family()])
        return gzip.compress(body, 1) if packed else body


def _respond_text(
    start_response: _StartResponse, status: str, words: str, *headers: tuple[str, str]
) -> Iterable[bytes]:
    body = f"{words}\n".encode()
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *headers])
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = LIMIT_SECONDS

    def log_message(self, *_args: object) -> None:
        """Print nothing: the terminal may be a training's."""

    def get_stderr(self) -> io.StringIO:
        """Logs nothing, for the same reason; the client gets a 500."""
        return io.StringIO()

    def handle(self) -> None:
        """Answer, unless the client has gone or sends no valid HTTP."""
        with suppress(OSError, ValueError):
            super().handle()


class _Server(ThreadingWSGIServer):
    """Server with a limit on connections, and the handshake of TLS in the connection's own thread."""

    request_queue_size = 64
    tls: ssl.SSLContext | None = None

    def server_bind(self) -> None:
        """Bind without asking the name service what this machine is called, which can take long."""
        socket_address = self.server_address
        self._open: dict[int, socket.socket] = {}
        self._open_lock = threading.Lock()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(socket_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection; the oldest is closed where there are too many."""
        with self._open_lock:
            self._open[id(request)] = request
            oldest = next(iter(self._open.values())) if len(self._open) > MAX_CONNECTIONS else None
            if oldest is not None:
                del self._open[id(oldest)]
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer in the connection's thread, behind TLS if asked for."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(LIMIT_SECONDS)
        with suppress(OSError), self.tls.wrap_socket(request, server_side=True) as channel:
            super().finish_request(channel, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Drop the connection."""
        with self._open_lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of one connection: mostly the client has gone."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Listens from its making on; `close` ends it."""

    def __init__(
        self,
        stage: ExportStage,
        address: str,
        port: int,
        certfile: str | None = None,
        keyfile: str | None = None,
        *,
        allowed: Collection[str] = (),
    ) -> None:
        """Listen.

        Args:
            stage: renders the page.
            address: of this machine, on which to listen; a name or a number.
            port: 0 for any that is free.
            certfile: of TLS, with `keyfile`; none: plain HTTP.
            keyfile: the key, where it is not in `certfile`.
            allowed: values of Host to answer to, beside the address and this machine's own names (`HostNames`).

        Raises:
            UnusableInput: no such address, or certificate.
            NotPossibleHere: the port is taken, or not for this user.
        """
        tls = None if certfile is None else _tls(certfile, keyfile)
        family, number = _resolve(address, port)
        kind = _Server6 if family == socket.AF_INET6 else _Server
        try:
            self._server = make_server(
                number, port, MetricsApp(stage, HostNames((address, *allowed))), kind, _Handler
            )
        except OSError as error:
            raise _cannot_listen(address, port, error) from None
        self._server.tls = tls
        self.port = self._server.server_port
        self.is_loopback = ip_address(number.partition("%")[0]).is_loopback
        self.is_everywhere = ip_address(number.partition("%")[0]).is_unspecified
        host = f"[{address}]" if ":" in address else address
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="llmtop-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _resolve(address: str, port: int) -> tuple[int, str]:
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError):
        raise UnusableInput(
            f"--bind {address}: this machine has no such address; use 0.0.0.0 for all addresses, 127.0.0.1 for "
            f"this machine only"
        ) from None
    family, _, _, _, where = found[0]
    return family, str(where[0])


def _tls(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise UnusableInput(f"--certfile {certfile}: no certificate and key can be read there ({why})") from None
    return context


def _cannot_listen(address: str, port: int, error: OSError) -> LlmtopError:
    return NotPossibleHere(
        f"nothing can listen on port {port} of {address}: {error.strerror}; is there another llmtop export? "
        "Give another --port, or --textfile"
    )

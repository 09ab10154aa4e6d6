"""Pages on a real socket, as an exporter or Prometheus gives them; or something that only looks like one."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]
Serve = Callable[[Answer], str]


@contextmanager
def servers(path: str = "/metrics") -> Iterator[Serve]:
    """Start a server that answers so, and say where that path of it is; all end together."""
    running = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):  # who asked has had enough
                    answer(self)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def log_message(self, *_args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}{path}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def page(body: bytes, status: int = 200) -> Answer:
    """An answer that is always the same."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(body)

    return answer

"""Many nodes that are none: pages as `llmtop export` writes them, of made-up GPUs and ranks, on one real port."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path

from collectors.exporter import names
from tests.support.prometheus import Prometheus

STEP_SECONDS, WAIT_SECONDS, SLOW_BY = 0.5, 0.15, 0.12
_KEPT = (names.NODE_INFO.name, f"{names.SNAPSHOT.name} ", names.SNAPSHOT_LIMIT.name, "#")
"""What an exporter still tells once its snapshots have stopped."""


class Nodes:
    """Serves the page of node N at /N (a context manager). What is planted may be changed while it serves."""

    def __init__(self, count: int, *, gpus: int = 8) -> None:
        self.count, self.gpus = count, gpus
        self.slow: int | None = None
        """The rank that waits less than the others."""
        self.idle: tuple[int, int] | None = None
        """Node and number of the GPU that looks busy and is not."""
        self.behind: int | None = None
        """The rank that has not called what all others wait in."""
        self.down: set[int] = set()
        self.extra = ""
        """Labels put to every series."""
        self.xid: tuple[int, int] | None = None
        self.ecc: tuple[int, int] | None = None
        self.hot: tuple[int, int] | None = None
        """Node and number of a GPU with one of these."""
        self.ahead: dict[int, float] = {}
        """By node, the seconds by which its clock is ahead."""
        self.stopped: dict[int, float] = {}
        """By node, when its snapshots stopped (unix time by the right clock); it then exports no other values."""
        self.silent: set[int] = set()
        """Ranks that are not attached."""
        self.link_errors: dict[int, int] = {}
        """By node, the symbol errors of its first InfiniBand port."""
        self._began = time.time()
        self._pages: dict[int, tuple[object, str, list[float | None]]] = {}
        """By node: what was planted when it was written, the text, and what its numbers are made of."""
        nodes = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.strip("/"))
                if number in nodes.down:
                    self.send_error(503)
                    return
                body = nodes.page(number).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def scrape_configs(self) -> list[dict[str, object]]:
        """What has Prometheus fetch them."""
        target = f"127.0.0.1:{self._server.server_port}"
        return [
            {
                "job_name": "llmtop",
                "static_configs": [
                    {"targets": [target], "labels": {"instance": f"node{n:03d}:9401", "__metrics_path__": f"/{n}"}}
                    for n in range(self.count)
                ],
            }
        ]

    def prometheus(self, folder: Path, rules: Path | None = None, interval: str = "1s") -> Prometheus:
        """A server that scrapes them."""
        return Prometheus(folder, [], interval=interval, rules=rules, scrape_configs=self.scrape_configs())

    def page(self, node: int) -> str:
        """What that node tells now."""
        planted = (
            *(self.slow, self.idle, self.behind, self.extra, self.xid, self.ecc, self.hot),
            *(frozenset(self.silent), self.link_errors.get(node)),
        )
        if self._pages.get(node, (None,))[0] != planted:
            self._pages[node] = (planted, *self._written(node))
        _, text, factors = self._pages[node]
        now, ahead = time.time(), self.ahead.get(node, 0.0)
        taken = self.stopped.get(node, now)
        steps = (taken - self._began) / STEP_SECONDS
        body = text % tuple(taken + ahead if factor is None else factor * steps for factor in factors)
        if node in self.stopped:
            body = "".join(line for line in body.splitlines(keepends=True) if line.startswith(_KEPT))
        return f"{body}{names.CLOCK.name} {now + ahead:.3f}\n"

    def _written(self, node: int) -> tuple[str, list[float | None]]:
        """The page, with places for numbers: each a factor of the steps so far, or None for the time."""
        factors: list[float | None] = [None]
        lines = [
            f'{names.NODE_INFO.name}{{hostname="node{node:03d}",version="0.1.0"{self.extra}}} 1',
            f"{names.SNAPSHOT.name} %.3f",
            f"{names.SNAPSHOT_LIMIT.name} 10",
            f"{names.SNAPSHOT_SECONDS.name} %.3f",
        ]
        factors.append(STEP_SECONDS)
        lines += self._links(node, factors)
        for number in range(self.gpus):
            lines += self._gpu(node, number)
            if node * self.gpus + number not in self.silent:
                lines += self._rank(node * self.gpus + number, node, number, factors)
        if self.idle is not None and self.idle[0] == node:
            gpu, uuid = self.idle[1], f"GPU-{node}-{self.idle[1]}"
            lines.append(
                f'llmtop_alert{{id="low_power_full_util",severity="critical",gpu="{gpu}",UUID="{uuid}"}} 1'
            )
        return "\n".join(lines) + "\n", factors

    def _links(self, node: int, factors: list[float | None]) -> list[str]:
        """One port of 400 Gb/s, which receives 20 GB/s and sends 10."""
        port = f'device="mlx5_0",port="1"{self.extra}'
        factors += [20e9 * STEP_SECONDS, 10e9 * STEP_SECONDS]
        return [
            f"{names.LINK_RECEIVED.name}{{{port}}} %.0f",
            f"{names.LINK_SENT.name}{{{port}}} %.0f",
            f"{names.LINK_RATE.name}{{{port}}} 5e10",
            f'{names.LINK_STATE.name}{{{port},layer="InfiniBand",state="ACTIVE"}} 1',
            f'{names.LINK_ERRORS.name}{{{port},error="symbol_error"}} {self.link_errors.get(node, 0)}',
        ]

    def _gpu(self, node: int, gpu: int) -> list[str]:
        idle = self.idle == (node, gpu)
        labels = (
            f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",modelName="NVIDIA H200",hostname="node{node:03d}"{self.extra}'
        )
        values = {
            "DEV_GPU_UTIL": 100,
            "DEV_MEM_COPY_UTIL": 0 if idle else 40,
            "DEV_POWER_USAGE": 120 if idle else 560 + (7 * node + 13 * gpu) % 80,
            "DEV_ENFORCED_POWER_LIMIT": 700,
            "DEV_FB_USED": 90_000,
            "DEV_FB_FREE": 50_000,
            "DEV_SM_CLOCK": 1755,
            "DEV_GPU_TEMP": 91 if self.hot == (node, gpu) else 60,
            "DEV_ROW_REMAP_FAILURE": 1 if self.ecc == (node, gpu) else 0,
            "DEV_MEMORY_TEMP": 70,
            "DEV_XID_ERRORS": 79 if self.xid == (node, gpu) else 0,
            "PROF_SM_ACTIVE": 0.01 if idle else 0.9,
            "PROF_PIPE_TENSOR_ACTIVE": 0.5,
            "PROF_PCIE_RX_BYTES": 3_000_000_000,
            "PROF_PCIE_TX_BYTES": 1_000_000_000,
            "PROF_NVLINK_RX_BYTES": 60_000_000_000,
            "PROF_NVLINK_TX_BYTES": 60_000_000_000,
        }
        return [f"DCGM_FI_{name}{{{labels}}} {value}" for name, value in values.items()]

    def _rank(self, rank: int, node: int, gpu: int, factors: list[float | None]) -> list[str]:
        who = f'rank="{rank}",pid="{1000 + gpu}"{self.extra}'
        wait = WAIT_SECONDS - (SLOW_BY if rank == self.slow else 0)
        totals: dict[str, float | None] = {
            "llmtop_steps_total": 1.0,
            "llmtop_step_seconds_total": STEP_SECONDS,
            "llmtop_outside_seconds_total": 0.01,
            "llmtop_comm_wait_seconds_total": wait,
            "llmtop_tokens_total": 4096.0,
            "llmtop_last_step_timestamp_seconds": None,
        }
        lines = [f"{name}{{{who}}} %.6f" for name in totals]
        factors += totals.values()
        for phase, share in (("dataload", 0.05), ("forward", 0.3), ("backward", 0.5), ("optimizer", 0.1)):
            lines.append(f'llmtop_phase_host_seconds_total{{{who},phase="{phase}"}} %.6f')
            factors.append(share * STEP_SECONDS)
        lines.append(f"{names.WORLD_SIZE.name}{{{who}}} {self.count * self.gpus}")
        for percentile, seconds in (("50", STEP_SECONDS), ("99", STEP_SECONDS * 1.1)):
            lines.append(f'llmtop_recent_step_seconds{{{who},percentile="{percentile}"}} {seconds}')
        if self.behind is not None:
            pg = f'{who},pg="0 default_pg"'
            lines.append(f"llmtop_collective_enqueued{{{pg}}} {39 if rank == self.behind else 40}")
            lines.append(f"llmtop_collective_completed{{{pg}}} 39")
        lines.append(
            f'llmtop_rank_info{{run="train.py · slurm 4711",{who},local_rank="{gpu}",'
            f'world_size="{self.count * self.gpus}",gpu="{gpu}",UUID="GPU-{node}-{gpu}",uid="1000",kind="step"}} 1'
        )
        return lines

"""Texts of a training's socket, of a Prometheus and of a configuration reach the terminal as text alone.

What a terminal would obey stands in each text (`tests/support/hostile.py`): in every field of every message of the
protocol, in the labels and the errors of a server, in the keys and the values of config.toml. The bytes are read
that real commands write, into a pipe and into a pty.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from collectors.prometheus.queries import TAG, Queries
from llmtop.protocol import wire
from tests.support import hostile, preloaded, wire_peer
from tests.support.pages import servers
from tests.support.processes import environment, wait_for
from tests.support.terminal import Terminal

LLMTOP = (sys.executable, "-m", "llmtop")


def check(done: CompletedProcess[str], *codes: int) -> None:
    """Nothing is obeyed of what a command wrote, and it ended as is documented."""
    assert done.returncode in (codes or (0,)), done.stderr
    for written in (done.stdout, done.stderr):
        assert hostile.obeyed(written.encode()) == []
        assert "\x1b" not in written


def messages() -> bytes:
    """Each message that a training may send, as often as a text can begin with another piece; steps come last."""
    kinds = [kind for kind in get_args(wire.FromTraining) if kind not in (wire.Hello, wire.Refused, wire.Steps)]
    data = b""
    for first in range(len(hostile.PIECES)):
        hello = hostile.value(wire.Hello, first)
        data += wire.encode(replace(hello, protocol=wire.PROTOCOL, rank=0, store=None))
        data += b"".join(wire.encode(hostile.value(kind, first)) for kind in kinds)
        steps = hostile.value(wire.Steps, first)
        now = time.time_ns()
        done = [
            msgspec.structs.replace(steps.steps[0], index=index, started_unix_ns=now + index, host_ns=10**8)
            for index in range(2 * first, 2 * first + 2)
        ]
        data += wire.encode(replace(steps, steps=done, first_ordinal=2 * first, lost=0, unix_offset_ns=0))
    return data


@pytest.fixture
def hostile_training(runtime_dir: Path) -> Iterator[Path]:
    """A socket on which a training sends hostile messages, and then holds the connection."""
    file = runtime_dir / "frames"
    file.write_bytes(messages())
    peer = wire_peer.start_file(runtime_dir / "4242-0123abcd.sock", file)
    yield runtime_dir
    peer.kill()
    peer.wait(100)


def test_a_training_on_a_socket_writes_no_escape_sequence(hostile_training: Path) -> None:
    env = environment(LLMTOP_DIR=str(hostile_training))
    for options in (("--once",), ("--once", "--json")):

        def shown(options: tuple[str, ...] = options) -> CompletedProcess[str] | None:
            done = preloaded.llmtop(*options, env=env)
            check(done)
            return done if hostile.MARK in done.stdout else None  # on a busy machine it waits too short for it

        done = wait_for(shown, what="the training in what it shows")
    assert done is not None
    assert json.loads(done.stdout)["ranks"]


def test_the_screen_of_a_hostile_training_obeys_nothing(hostile_training: Path) -> None:
    env = {"LLMTOP_DIR": str(hostile_training)}
    with Terminal([*LLMTOP], (160, 45), **env) as terminal:
        terminal.shows(hostile.MARK)
        terminal.keys("q")
        assert terminal.ends() == 0
        assert hostile.obeyed(terminal.raw) == []


def samples(first: int) -> list[dict[str, object]]:
    """A sample for each part of the pane's queries, every label of which is hostile."""
    queries = Queries(rules=True)
    asked = " ".join(str(getattr(queries, name)) for name in ("overview", "nodes", "ranks", "critical"))
    tags = sorted({*re.findall(rf'"{TAG}", "([^"]+)"', asked)})
    labels = (
        *(
            "instance",
            "job",
            "hostname",
            "run",
            "uid",
            "id",
            "gpu",
            "rank",
            "pid",
            "host",
            "rank_pid",
            "operation",
        ),
        *("communicator", "pg", "xid", "kind", "uuid", "__name__"),
    )
    texts = dict.fromkeys(labels, hostile.text(first))
    now = time.time()
    return [
        {"metric": {**texts, TAG: tag}, "value": [now, str(now if tag in ("now", "newest") else 1)]}
        for tag in tags
    ]


def answered(body: dict[str, object], status: int, kind: str = "application/json") -> object:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.mark.slow("names of series stand for all; each starts a screen", kept=("labels",))
@pytest.mark.parametrize("kind", ["labels", "error", "refused"])
def test_a_prometheus_writes_no_escape_sequence(kind: str) -> None:
    several = [one for first in range(0, len(hostile.PIECES), 5) for one in samples(first)]
    bodies: dict[str, tuple[dict[str, object], int]] = {
        "labels": ({"status": "success", "data": {"resultType": "vector", "result": several}}, 200),
        "error": ({"status": "error", "errorType": hostile.text(), "error": hostile.text(3)}, 422),
        "refused": ({"status": hostile.text(), "error": hostile.text(3)}, 200),
    }
    with servers("") as serve:
        url = serve(answered(*bodies[kind]))  # type: ignore[arg-type]
        for options in (("--once",), ("--once", "--json")):
            done = preloaded.llmtop("cluster", "--prometheus", url, *options, env=environment())
            check(done, 0, 3)
            assert hostile.MARK in done.stdout + done.stderr
        with Terminal([*LLMTOP, "cluster", "--prometheus", url], (160, 45)) as terminal:
            terminal.shows(hostile.MARK)
            terminal.keys("q")
            assert terminal.ends() == 0
            assert hostile.obeyed(terminal.raw) == []


def quoted(text: str) -> str:
    """A basic string of TOML; what it may not hold as it is stands escaped."""
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


@pytest.mark.parametrize(
    "config",
    [
        f"theme = {quoted(hostile.text())}\n",
        f"{quoted(hostile.text())} = 1\n",
        f"[alerts]\noff = [{quoted(hostile.text())}]\n",
        f"[{quoted(hostile.text())}]\nx = 1\n",
        f"[columns]\nprocesses = [{quoted(hostile.text())}]\n",
        f"[cluster]\nprometheus = {quoted(hostile.text())}\n",
        f"theme = {hostile.text()}\n",
        hostile.text(3),
    ],
)
def test_a_configuration_writes_no_escape_sequence(config: str, tmp_path: Path) -> None:
    place = tmp_path / "llmtop"
    place.mkdir()
    (place / "config.toml").write_text(config, encoding="utf-8")
    env = environment(XDG_CONFIG_HOME=str(tmp_path))
    check(preloaded.llmtop("--once", env=env), 0, 2)
    done = preloaded.llmtop("cluster", "--once", env=env)
    check(done, 2)
    assert hostile.MARK in done.stderr


@pytest.mark.parametrize("command", ["report", "compare", "captures", "replay"])
def test_a_name_of_a_file_writes_no_escape_sequence(command: str, tmp_path: Path) -> None:
    path = tmp_path / hostile.text()[:80].replace("/", "_")
    arguments = {
        "report": [path],
        "compare": [path, path],
        "captures": ["--out", path],
        "replay": [path, "--json"],
    }
    for content in (None, b"", b"{", b"\x1f\x8b\x08\x00", hostile.text().encode()):
        if content is not None:
            path.write_bytes(content)
        done = preloaded.llmtop(command, *arguments[command], env=environment())
        check(done, 0, 2, 3)

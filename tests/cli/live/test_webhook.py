"""Alerts and ends of runs are posted to a real server; the address is in nothing that llmtop writes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.run_notes.node_writer import TURN_SECONDS
from llmtop.cli.live import webhook
from llmtop.cli.live.webhook import Webhook
from llmtop.config import Notify, parse
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot
from llmtop.runs import folder
from llmtop.system.address_file import read_address
from tests.support import generated_run, made_runs, snapshots
from tests.support.preloaded import llmtop
from tests.support.processes import environment, wait_for

SECRET = "xoxb-2f7a9c"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, bytes]] = []
        self.answers: list[tuple[int, str]] = []
        """Status and Location of the next answers; then 200."""
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        """Ends the hanging, which takes 20 s at most."""
        self.has_given_up = False
        """Whether it hung so long."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, body))
        if self.server.hangs.is_set() and not self.server.goes_on.wait(20):
            self.server.has_given_up = True
        status, location = self.server.answers.pop(0) if self.server.answers else (200, "")
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    (tmp_path / "sockets").mkdir(mode=0o700)
    monkeypatch.setenv("LLMTOP_DIR", str(tmp_path / "sockets"))
    monkeypatch.setattr(webhook, "RETRY_SECONDS", (0.05, 0.05))
    running = _Server()
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join(10)


def _alert(summary: str = 'GPU 3 "spins".', **fields: Any) -> Alert:
    return Alert(id="low_power_full_util", severity="critical", gpu="GPU-3", since=1.0, summary=summary, **fields)


def _snapshot(*alerts: Alert, ranks: tuple[Rank, ...] = ()) -> Snapshot:
    return Snapshot(time=7.0, host=Host(name="node"), alerts=alerts, ranks=ranks)


def _events(server: _Server) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in list(server.posted)]


def test_an_alert_is_posted_once_and_so_is_its_end(server: _Server) -> None:
    hook = Webhook(Notify(), server.address)
    for _ in range(3):
        hook(_snapshot(_alert(next="press c")))
    hook(_snapshot())
    raised, resolved = wait_for(lambda: _events(server) if len(server.posted) == 2 else [])
    hook.close()
    assert (raised["event"], raised["id"], raised["severity"]) == ("raised", "low_power_full_util", "critical")
    assert (raised["summary"], raised["next"], raised["host"]) == ('GPU 3 "spins".', "press c", "node")
    assert (resolved["event"], resolved["severity"]) == ("resolved", "info")
    assert server.posted[0][0] == f"/hook/{SECRET}"


def test_the_end_of_a_run_is_posted_when_its_last_process_here_is_gone(server: _Server) -> None:
    hook = Webhook(Notify(events=["ended"]), server.address)
    one, two = (snapshots.rank(pid, job="train.py", step=41, state="running") for pid in (1, 2))
    hook(_snapshot(_alert(), ranks=(one, two)))
    hook(_snapshot(ranks=(one, snapshots.rank(2, job="train.py", step=41, state="gone"))))
    hook(_snapshot(ranks=(snapshots.rank(1, job="train.py", step=41, state="gone"),)))
    hook(_snapshot())
    wait_for(lambda: server.posted)
    hook.close()
    (ended,) = _events(server)
    assert (ended["event"], ended["job"], ended["summary"]) == (
        "ended", "train.py", "The run train.py has ended after step 41.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words"),
    [("", "was killed after step 41: it wrote no end"), ("KeyError", "has failed after step 41: KeyError")],
)
def test_the_end_of_a_run_that_was_killed_or_failed_says_so(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, words: str
) -> None:
    monkeypatch.setenv("LLMTOP_RUNS", str(tmp_path))
    if error:
        run = made_runs.write_run(tmp_path, "night", [0.1] * 42, error=error)
    else:
        run = generated_run.write_run(tmp_path, end=1.7e9, hours=0.1)
    (file,) = (path for path in run.iterdir() if path.name.endswith(folder.RUN))
    name, _ = folder.parsed_name(file.name) or (None, None)
    assert name is not None
    hook = Webhook(Notify(events=["ended"]), server.address)
    rank = snapshots.rank(name.pid, job="train.py", step=41, rank=name.rank, attached_at=name.started_ms / 1000)
    hook(_snapshot(ranks=(rank,)))
    hook(_snapshot())
    wait_for(lambda: server.posted)
    hook.close()
    (ended,) = _events(server)
    assert (ended["severity"], ended["summary"]) == ("warning", f"The run train.py {words}.")


def test_a_template_has_times_to_the_millisecond(server: _Server) -> None:
    hook = Webhook(Notify(body='{"at": $time}'), server.address)
    hook(replace(_snapshot(_alert()), time=1795788336.218))
    wait_for(lambda: server.posted)
    hook.close()
    assert _events(server) == [{"at": 1795788336.218}]


def test_a_template_is_filled_in_as_json(server: _Server) -> None:
    body = '{"text": "$severity: $summary ($host)", "at": $time}'
    hook = Webhook(Notify(body=body), server.address)
    hook(_snapshot(_alert()))
    wait_for(lambda: server.posted)
    hook.close()
    assert _events(server) == [{"text": 'critical: GPU 3 "spins". (node)', "at": 7}]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("{'text': '$summary'}", "no JSON"),
        ('{"a": "$sumary"}', "$sumary is no field"),
        ('{"a": "5 $"}', "write $$"),
    ],
)
def test_a_wrong_template_is_one_sentence(body: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableInput) as found:
        parse(f"[notify]\nbody = '''{body}'''\n", tmp_path / "config.toml")
    assert word in str(found.value)
    assert "line 2" in str(found.value)


def test_events_beyond_the_limit_are_counted_in_the_next(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0.0
    monkeypatch.setattr(webhook, "time", SimpleNamespace(monotonic=lambda: 1000.0 + waited))
    hook = Webhook(Notify(events=["raised"], per_minute=2), server.address)
    for number in range(5):
        hook(_snapshot(_alert(pid=number)))
    wait_for(lambda: len(server.posted) == 2)
    waited = webhook.LIMIT_SECONDS
    hook(_snapshot(_alert(pid=9)))
    wait_for(lambda: len(server.posted) == 3)
    hook.close()
    assert [event["skipped"] for event in _events(server)] == [0, 0, 3]


def test_a_redirect_is_refused_and_named_without_an_address(server: _Server) -> None:
    server.answers.append((307, f"http://127.0.0.1:{server.server_address[1]}/elsewhere"))
    hook = Webhook(Notify(), server.address)
    hook(_snapshot(_alert()))
    (note,) = wait_for(lambda: hook(_snapshot(_alert())).host.notes)
    hook.close()
    assert "redirects (307)" in note
    assert SECRET not in note
    assert "127.0.0.1" not in note
    assert len(server.posted) == 1


def test_a_server_that_fails_gets_it_again(server: _Server) -> None:
    server.answers += [(503, ""), (429, "")]
    hook = Webhook(Notify(), server.address)
    hook(_snapshot(_alert()))
    wait_for(lambda: len(server.posted) == 3)
    hook.close()  # waits for the third answer
    assert hook(_snapshot(_alert())).host.notes == ()


def test_a_server_that_hangs_holds_up_no_snapshot(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_SECONDS", 60.0)
    server.hangs.set()
    hook = Webhook(Notify(), server.address)
    hook(_snapshot(_alert()))
    wait_for(lambda: server.posted)
    hook(_snapshot(_alert()))
    assert not server.has_given_up, "the calls have returned while it hangs"
    server.goes_on.set()
    hook.close()
    server.goes_on.clear()
    monkeypatch.setattr(webhook, "TIMEOUT_SECONDS", 0.2)
    hook = Webhook(Notify(), server.address)
    hook(_snapshot(_alert()))
    notes = wait_for(lambda: hook(_snapshot(_alert())).host.notes)
    hook.close()
    server.goes_on.set()
    assert SECRET not in str(notes)


def test_one_monitor_of_a_node_posts(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0.0
    monkeypatch.setattr(webhook, "time", SimpleNamespace(monotonic=lambda: 1000.0 + waited))
    first, second = (Webhook(Notify(), server.address) for _ in range(2))
    for hook in (first, second):
        hook(_snapshot(_alert()))
    wait_for(lambda: server.posted)
    first.close()
    second(_snapshot(_alert(), _alert(pid=5)))
    waited = TURN_SECONDS
    second(_snapshot(_alert(), _alert(pid=5), _alert(pid=6)))
    wait_for(lambda: len(server.posted) == 2)
    second.close()
    assert [event["pid"] for event in _events(server)] == [None, 6]


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        (f"https://host/{SECRET}", 0o644, "chmod 600"),
        (f"ftp://host/{SECRET}", 0o600, "must hold one address"),
        (f"https://host/{SECRET}\nhttps://other", 0o600, "must hold one address"),
        (f"https://host/{SECRET}" + "x" * 5000, 0o600, "must hold one address"),
        ("", 0o600, "must hold one address"),
    ],
)
def test_an_unusable_file_is_one_sentence_without_what_it_holds(
    tmp_path: Path, text: str, mode: int, word: str
) -> None:
    path = tmp_path / "hook"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UnusableInput) as found:
        read_address(path)
    assert word in str(found.value)
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9/" + SECRET, "https://no-such-host.invalid/" + SECRET, "http://[::1/" + SECRET,
     f"http://127.0.0.1:{SECRET}/", f"http://user:{SECRET}@127.0.0.1:9/"],
)  # fmt: skip
def test_an_address_that_cannot_be_reached_is_in_no_note(server: _Server, address: str) -> None:
    hook = Webhook(Notify(), address)
    hook(_snapshot(_alert()))
    (note,) = wait_for(lambda: hook(_snapshot(_alert())).host.notes)
    hook.close()
    assert SECRET not in note
    assert "was not delivered" in note


def test_the_command_refuses_a_readable_file_and_the_settings_do_not_hold_the_address(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"https://host/{SECRET}\n")
    config = tmp_path / "llmtop" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[notify]\nurl_file = "{hook}"\n')
    env = environment(XDG_CONFIG_HOME=str(tmp_path), LLMTOP_DIR=str(tmp_path / "sockets"))
    hook.chmod(0o644)
    refused = llmtop("record", tmp_path / "a.gz", "--seconds", "1", env=env)
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
    os.chmod(hook, 0o600)
    shown = llmtop("config", "show", "--json", env=env)
    taken = llmtop("record", tmp_path / "b.gz", "--seconds", "1", env=env)
    assert taken.returncode == 0, taken.stderr
    for text in (refused.stderr, shown.stdout, shown.stderr, taken.stdout, taken.stderr):
        assert SECRET not in text

"""A server that answers in odd ways, over a real socket: each is a sentence, and the next question is answered."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.prometheus.client import Client, Credentials, QueryError, read_token, redacted_url
from collectors.prometheus.cluster import Cluster
from collectors.prometheus.queries import TAG
from llmtop.errors import NotPossibleHere, UnusableInput
from tests.support.pages import Serve, servers
from tests.support.processes import wait_for

Handler = http.server.BaseHTTPRequestHandler


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers so, and say where."""
    with servers("") as start:
        yield start


def reply(body: bytes, status: int = 200, kind: str = "application/json") -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def found(*series: dict[str, str], value: str = "1", **more: Any) -> bytes:
    result = [{"metric": labels, "value": [1000.5, value]} for labels in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


GOOD = found({"a": "b"})


def slow(handler: Handler, writes: int = 60) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    for _ in range(writes):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def silent(_handler: Handler) -> None:
    time.sleep(20)


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


@pytest.mark.parametrize(
    ("answer", "words", "whole"),
    [
        (
            reply(b'{"status":"error","errorType":"execution","error":"many-to-many"}', 422),
            r"refused.*422.*many-to",
            False,
        ),
        (
            reply(b"<html>\x1b]0;x\x07 502</html>", 502, "text/html"),
            r"an answer that is not from a Prometheus \(text/html\)",
            True,
        ),
        (reply(b"<html>login</html>", 200, "text/html"), "an answer that is not from a Prometheus", True),
        (reply(GOOD[: len(GOOD) // 2]), "an incomplete answer", False),
        (reply(b"[" * 100_000), "an incomplete answer", False),
        (
            reply(b'{"status":"success","data":{"result":[{"metric":{},"value":["x",1]}]}}'),
            "an incomplete answer",
            False,
        ),
        (reply(b"\xff\xfe"), "an incomplete answer", False),
        (reply(b"", 401), "refuses access.*--token-file", True),
        (reply(b"", 302), "an answer that is not from a Prometheus", False),
        (slow, "not answered within 1 s", True),
        (silent, "not answered within 1 s", True),
        (endless, "more than 32 MiB|not answered", None),
    ],
    ids=["422", "502", "html", "half", "nested", "other json", "bytes", "401", "302", "slow", "silent", "endless"],
)
def test_an_odd_answer_is_a_sentence(
    serve: Serve, answer: Callable[[Handler], None], words: str, whole: bool | None
) -> None:
    client = Client(serve(answer), limit=1.0 if answer in (slow, silent, endless) else 20.0)
    with pytest.raises(QueryError, match=words) as told:
        client.query("up")
    assert str(told.value).isprintable()
    if whole is not None:
        assert told.value.whole is whole
    client.close()


def test_an_answer_that_comes_byte_by_byte_is_left_before_its_end(serve: Serve) -> None:
    ended = []

    def endless_bytes(handler: Handler) -> None:
        try:
            slow(handler, writes=4000)
        except OSError as error:
            ended.append(error)

    client = Client(serve(endless_bytes), limit=0.2)
    with pytest.raises(QueryError, match="not answered within"):
        client.query("up")
    client.close()
    wait_for(lambda: ended, 60, "the connection is closed")


def test_nobody_there_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(QueryError, match="cannot be reached: Connection refused"):
            client.query("up")


def test_labels_by_the_thousand_and_numbers_that_are_none_are_borne(serve: Serve) -> None:
    many = {f"label_{number}": "x" * 50 for number in range(1000)}
    (sample,) = Client(serve(reply(found({"rank": "3", **many})))).query("up").samples
    assert sample.labels["rank"] == "3"
    assert Client(serve(reply(found({}, value="NaN")))).query("up").samples == ()
    assert Client(serve(reply(found({}, value="+Inf")))).query("up").samples == ()


def test_what_a_server_says_of_its_own_answer_is_told(serve: Serve) -> None:
    view = Cluster(Client(serve(reply(found({"is": "raw"}, warnings=["partial response\x1b[2J"]))))).query_view()
    assert any("says: partial response" in sentence for sentence in view.problems)
    assert all(sentence.isprintable() for sentence in view.problems)


def test_one_refused_question_costs_its_own_part_alone(serve: Serve) -> None:
    def answer(handler: Handler) -> None:
        nonlocal asked
        asked += 1
        node = found({TAG: "up", "instance": "n1:9401", "job": "llmtop", "hostname": "n1"})
        reply(node if asked == 2 else b'{"status":"error","error":"too many"}', 200 if asked == 2 else 422)(
            handler
        )

    asked = 0
    view = Cluster(Client(serve(answer))).query_view()
    assert view.nodes_up == 1
    assert [node.name for node in view.nodes] == ["n1"]
    assert any("too many" in sentence for sentence in view.problems)


def test_a_mute_server_is_asked_once_a_round(serve: Serve) -> None:
    def answer(_handler: Handler) -> None:
        nonlocal asked
        asked += 1
        time.sleep(3)

    asked = 0
    view = Cluster(Client(serve(answer), limit=0.5)).query_view()
    assert len(view.problems) == 1
    assert view.nodes_up is None
    wait_for(lambda: asked)  # a busy server hears the question after the client has given up
    assert asked == 1


def headers_of(serve: Serve, access: Credentials | None, secret: str = "") -> dict[str, str]:
    heard: dict[str, str] = {}

    def answer(handler: Handler) -> None:
        heard.update(handler.headers.items())
        reply(GOOD)(handler)

    client = Client(serve(answer).replace("http://", f"http://{secret}"), access)
    client.query("up")
    assert "s3cret" not in client.name
    return heard


def test_who_asks_is_told_as_the_server_wants_it(serve: Serve) -> None:
    assert headers_of(serve, Credentials(token="s3cret"))["Authorization"] == "Bearer s3cret"
    basic = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert headers_of(serve, Credentials(user="ann", password="s3cret"))["Authorization"] == basic
    assert headers_of(serve, None, "ann:s3cret@")["Authorization"] == basic
    assert headers_of(serve, Credentials(org="team-7"))["X-Scope-OrgID"] == "team-7"
    assert "Authorization" not in headers_of(serve, None)


@pytest.mark.parametrize("url", ["9090", "ftp://node:9090", "http://", "node:9090", "http:///api"])
def test_what_is_no_url_is_a_sentence(url: str) -> None:
    with pytest.raises(UnusableInput, match="not the URL of a Prometheus"):
        Client(url)


def test_secrets_stay_out_of_sentences(tmp_path: Path) -> None:
    assert redacted_url("ftp://ann:s3cret@node:1") == "ftp://node:1"
    with pytest.raises(UnusableInput) as told:
        Client("ftp://ann:s3cret@node:1")
    assert "s3cret" not in str(told.value)
    with pytest.raises(NotPossibleHere, match="cannot be read"):
        read_token(tmp_path / "missing")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UnusableInput, match="is empty"):
        read_token(tmp_path / "empty")
    with pytest.raises(UnusableInput, match="--ca"):
        Client("https://node:9090", Credentials(ca=str(tmp_path / "empty")))

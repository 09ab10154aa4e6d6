"""Values in the store of a job: their names and their JSON, which nodes with another version read as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtop.protocol import job_store
from llmtop.protocol.job_store import Keys, NodeCard, NodeStatus, RankStatus, StoreRequest
from llmtop.protocol.wire import SampledFrame

_CLUSTER = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_names_are_those_of_the_table() -> None:
    keys = Keys("llmtop/7")
    assert keys.nodes == "llmtop/7/nodes"
    assert (keys.node(2), keys.ask(3), keys.beat(4)) == ("llmtop/7/node/2", "llmtop/7/ask/3", "llmtop/7/beat/4")
    assert keys.status(5, 6) == "llmtop/7/told/5/6"


def test_the_time_until_a_node_cancels_is_the_documented_one_and_longer_than_several_heartbeats() -> None:
    assert f"the nodes cancel within {job_store.LOST_SECONDS:g} s" in _CLUSTER.read_text()
    assert job_store.LOST_SECONDS >= 3 * (job_store.STATUS_INTERVAL_SECONDS + job_store.POLL_SECONDS)
    assert 0 < job_store.POLL_SECONDS < job_store.STATUS_INTERVAL_SECONDS


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            NodeCard(names=["a", "b"], rank=8, local_world_size=8, version="1"),
            {"names": ["a", "b"], "rank": 8, "local_world_size": 8, "version": "1"},
        ),
        (NodeCard(names=[], rank=0), {"names": [], "rank": 0, "local_world_size": None, "version": ""}),
        (
            StoreRequest(id="x", at_step=40, steps=5, engine="nsys"),
            {"id": "x", "at_step": 40, "steps": 5, "engine": "nsys"},
        ),
        (
            StoreRequest(id="x", at_step=0, steps=1, engine="nsys", ranks=[0, 9], node="b", memory_bytes=3),
            {
                "id": "x",
                "at_step": 0,
                "steps": 1,
                "engine": "nsys",
                "ranks": [0, 9],
                "node": "b",
                "memory_bytes": 3,
            },
        ),
        (NodeStatus(host="a"), {"host": "a"}),
        (
            NodeStatus(host="a", beat=2, shared=True, ranks=[RankStatus(rank=1), RankStatus(rank=2, seconds=0.5)]),
            {"host": "a", "beat": 2, "shared": True, "ranks": [{"rank": 1}, {"rank": 2, "seconds": 0.5}]},
        ),
        (
            NodeStatus(host="a", ranks=[RankStatus(rank=0, stack=[SampledFrame(name="f", file="a.py", line=3)])]),
            {"host": "a", "ranks": [{"rank": 0, "stack": [["f", "a.py", 3]]}]},
        ),
    ],
)
def test_a_message_is_json_without_what_is_usual(
    message: NodeCard | StoreRequest | NodeStatus, fields: dict[str, object]
) -> None:
    body = job_store.encode(message)
    assert json.loads(body) == fields
    assert job_store.decode(type(message), body) == message


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"{", b"[]", b"null", b'{"id": 1}', b"\xff", b'{"host": 7}', b"[" * 100_000]
)
def test_what_is_no_message_is_none(body: bytes) -> None:
    assert job_store.decode(StoreRequest, body) is None
    assert job_store.decode(NodeStatus, body) is None


def test_fields_of_a_newer_version_are_passed_over() -> None:
    assert job_store.decode(NodeStatus, b'{"host": "a", "mood": 7}') == NodeStatus(host="a")

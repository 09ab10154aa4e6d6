"""`llmtop mcp` by the real client of the mcp package, over standard input and output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llmtop.__main__ import COMMANDS
from llmtop.cli.mcp.bounds import LARGEST_BYTES, SHORTENED, bounded
from llmtop.cli.mcp.command import TOOLS
from tests.support.processes import REPOSITORY, environment
from tests.support.schemas import schema_faults

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp.types import CallToolResult

DATA = REPOSITORY / "tests" / "data"


def _client() -> Client:
    """Return a client of a server of its own. The package takes 2 s to import, which no other test needs."""
    from mcp import StdioServerParameters
    from mcp.client import Client

    command = ["-m", "llmtop", "mcp"]
    return Client(StdioServerParameters(command=sys.executable, args=command, env=environment(), cwd=REPOSITORY))


def _value(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert result.structured_content is not None
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    return result.structured_content


async def test_a_real_client_lists_and_calls_the_tools(tmp_path: Path) -> None:
    capture = DATA / "h200" / "kineto" / "healthy_with_input_cost.json.gz"
    async with _client() as client:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == {tool.__name__ for tool in TOOLS}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        assert all(tool.description for tool in listed)
        seen = _value(await client.call_tool("snapshot", {}))
        assert not schema_faults("snapshot", seen)
        assert _value(await client.call_tool("alerts", {}))["alerts"] is not None
        report = _value(await client.call_tool("report", {"path": str(capture)}))
        assert report["verdict"] == "gpu_bound"
        assert not schema_faults("report", report)
        compared = _value(await client.call_tool("compare", {"before": str(capture), "after": str(capture)}))
        assert not schema_faults("comparison", compared)
        assert _value(await client.call_tool("captures", {"folder": str(tmp_path)})) == {"captures": []}
        assert _value(await client.call_tool("runs", {}))["runs"] is not None
        (tmp_path / "rank0.log").write_text("[rank0]: ValueError: bad batch\n")
        dead = _value(await client.call_tool("postmortem", {"paths": [str(tmp_path)]}))
        assert not schema_faults("postmortem", dead)


@pytest.mark.slow("a second server; test_a_real_client_lists_and_calls_the_tools has one")
async def test_a_failure_is_one_sentence_and_the_server_goes_on(tmp_path: Path) -> None:
    async with _client() as client:
        for path in (str(tmp_path / "none.json"), "--html=/tmp/x", ""):
            failed = await client.call_tool("report", {"path": path})
            assert failed.is_error
            (content,) = failed.content
            assert "Traceback" not in content.text  # type: ignore[union-attr]
            assert len(content.text.splitlines()) == 1  # type: ignore[union-attr]
        assert not (await client.call_tool("captures", {"folder": str(tmp_path)})).is_error


def test_every_tool_has_its_command() -> None:
    commands = {tool.__name__ for tool in TOOLS} - {"snapshot", "alerts"}
    assert commands <= set(COMMANDS)


@pytest.mark.parametrize("items", [10, 10_000, 300_000])
def test_a_long_answer_is_shortened_and_says_so(items: int) -> None:
    answer = {"schema": 1, "rows": [{"name": f"kernel {number}"} for number in range(items)], "text": "x" * 9000}
    short = bounded(answer)
    assert len(json.dumps(short, indent=2)) <= LARGEST_BYTES
    assert short["schema"] == 1
    if items == 10:
        assert short is answer
    else:
        assert len(short["rows"]) + short[SHORTENED]["$.rows"] == items


def test_an_answer_of_many_fields_still_fits() -> None:
    answer = {f"field {number}": "x" * 100 for number in range(10_000)}
    assert len(json.dumps(bounded(answer), indent=2)) <= LARGEST_BYTES

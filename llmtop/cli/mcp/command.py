"""llmtop mcp: llmtop's answers for coding agents, by the Model Context Protocol on standard input and output.

Each tool runs the command of its name with --json in a process of its own: an agent gets what a shell gets, a
file that ends a reader ends no server, and nothing that the command prints is taken for a message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from llmtop.cli.mcp.bounds import bounded
from llmtop.cli.own_command import run_own_command
from llmtop.errors import EXIT_DONE, NotPossibleHere
from llmtop.extras import how_to_install
from llmtop.naming import file_names
from llmtop.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

ANSWER_SECONDS: Final = 300.0
"""A report on two million events takes some 5 s; a command that takes longer than this is ended."""
INSTRUCTIONS: Final = (
    "llmtop monitors trainings of large language models. Begin with snapshot: it lists GPUs, ranks and alerts. "
    "An alert names its evidence and what to do next. report explains a capture, compare says whether a change "
    "helped. All tools only read."
)


def run_json(*words: str, several: str = "") -> dict[str, Any]:
    """Run a command of llmtop with --json.

    Args:
        words: command and arguments; --json is added.
        several: for a command that prints an object on each line: the key of the list of them.

    Returns:
        The decoded object, at most `bounds.LARGEST_BYTES` long.

    Raises:
        NotPossibleHere: the command failed; the sentence is its own.
    """
    command, *arguments = words
    options = [one for one in (command, "--json") if one]
    done = run_own_command(*options, *arguments, seconds=ANSWER_SECONDS)
    lines = done.stdout.splitlines()
    if done.returncode != EXIT_DONE and not lines:
        said = done.stderr.strip().splitlines()[-1:] or [f"llmtop {command} ended with {done.returncode}"]
        raise NotPossibleHere(said[0].removeprefix("llmtop: ").removeprefix("Error: "))
    found = {several: [json.loads(line) for line in lines]} if several else json.loads(done.stdout)
    return bounded(found)


def snapshot() -> dict[str, Any]:
    """Everything known now: GPUs (utilization, power, memory, PCIe), ranks with step and phase times, alerts."""
    return run_json("", "--once")


def alerts() -> dict[str, Any]:
    """Alerts that hold now, the most severe first, each with evidence and what to do next."""
    return {"alerts": snapshot()["alerts"]}


def captures(folder: str = file_names.CAPTURES) -> dict[str, Any]:
    """Captures in a folder: engine, ranks, steps, state.

    Args:
        folder: the folder of the captures.
    """
    return run_json("captures", "--out", folder, several="captures")


def report(path: str) -> dict[str, Any]:
    """Report on a capture, a trace, a recording, an allocator snapshot or stacks: verdict, findings, what to do.

    Args:
        path: a capture's folder, or a file of nsys, torch.profiler, py-spy, llmtop record or PyTorch's allocator.
    """
    return run_json("report", "--", path)


def compare(before: str, after: str) -> dict[str, Any]:
    """Compare two captures, recordings or reports: what became faster or slower, beyond the noise.

    Args:
        before: path of the first.
        after: path of the second.
    """
    return run_json("compare", "--", before, after)


def runs() -> dict[str, Any]:
    """Runs that were kept: when, command, ranks, steps, step time, how each ended; the newest first."""
    return run_json("runs", several="runs")


def postmortem(paths: list[str]) -> dict[str, Any]:
    """Culprit of a dead or hung job: rank, class and evidence, from dumps, logs and run files.

    Args:
        paths: files or folders: flight-recorder dumps, logs, SLURM output, dmesg, run files.
    """
    return run_json("postmortem", "--", *paths)


TOOLS: Final[tuple[Callable[..., dict[str, Any]], ...]] = (
    snapshot,
    alerts,
    captures,
    report,
    compare,
    runs,
    postmortem,
)


def server() -> MCPServer:
    """Return the server with all tools.

    Raises:
        NotPossibleHere: the package mcp is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError:
        raise NotPossibleHere(f"llmtop mcp needs the package mcp; {how_to_install('mcp')}") from None

    def answering(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        import functools

        @functools.wraps(tool)
        def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
            try:
                return tool(*args, **kwargs)
            except NotPossibleHere as error:
                raise ToolError(str(error)) from None

        return answer

    made = MCPServer("llmtop", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    for tool in TOOLS:
        made.add_tool(answering(tool), name=tool.__name__, annotations=ToolAnnotations(read_only_hint=True))
    return made


@click.command()
def mcp() -> int:
    """Serve llmtop's answers to a coding agent on standard input and output (Model Context Protocol).

    The tools only read: snapshot, alerts, captures, report, compare, runs, postmortem. Each gives what the command
    of its name prints with --json, shortened to 200 kB.
    """
    if sys.stdin is None:
        raise NotPossibleHere("standard input is closed; a coding agent starts llmtop mcp with pipes")
    sys.stdout.fileno()  # raises where standard output is closed
    server().run("stdio")
    return EXIT_DONE

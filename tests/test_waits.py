"""Every wait ends: no call in the product waits without a limit, but those whose reasons stand here.

A test that waits too long is ended by pytest-timeout, whose limit holds for all of them; product code has none.
Loops are not judged here: each ends by a deadline of its own, or is the main loop of a thread or a process.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

PACKAGES = ("llmtop", "collectors", "tui")
NO_ARGUMENTS = frozenset({"join", "wait", "result", "acquire", "accept", "communicate", "get"})
"""Methods that wait for ever when they are called without an argument; with one, it is the limit."""
NO_TIMEOUT = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "urllib.request.urlopen", "socket.create_connection", "urlopen", "create_connection",
})  # fmt: skip
"""Functions that wait for ever without `timeout=`."""
NEVER = frozenset({"os.wait", "signal.pause", "signal.sigwait"})
PIPES = frozenset({"stdout", "stderr", "stdin"})

NO_WAIT = "returns at once: nothing of threading, subprocess or socket"
MAIN_LOOP = "the main loop of a thread or process of llmtop, which waits for work"
KEY = "waits for a key"
LIMITED = "PerfRun.wait, which has a limit of its own"
ALLOWED = {
    ("collectors/record_stage.py", "RecordStage._write"): MAIN_LOOP,
    ("collectors/trainings/source.py", "StepsSource._take_opened"): "only this thread takes, and it is not empty",
    ("collectors/replay.py", "ReplayFeed._wait"): f"{KEY}: the replay is paused",
    ("llmtop/capture/kineto/daemon.py", "FabricHost._accept"): "a socket that does not block",
    ("llmtop/capture/kineto/spawn.py", "_spawn"): "its own fork, which forks once more and exits",
    ("llmtop/capture/perf/recording.py", "PerfRecording.read_counters"): LIMITED,
    ("llmtop/capture/perf/recording.py", "PerfRecording.read_stacks"): LIMITED,
    ("llmtop/capture/take.py", "take"): "_BackgroundGitState.result, which has a limit of its own",
    ("llmtop/capture/torch_xla/trace_program.py", "main"): "the monitor's word; hanging up ends it too",
    ("llmtop/cli/live/alert_command.py", "AlertCommand._run"): MAIN_LOOP,
    ("llmtop/instrument/auto/training/loop_state.py", "LoopState.__init__"): NO_WAIT,
    ("llmtop/instrument/record/overlapping.py", "Tracks._own"): NO_WAIT,
    ("llmtop/instrument/record/overlapping.py", "Tracks._for_phase"): NO_WAIT,
    ("llmtop/instrument/serve/server.py", "Server.__init__"): "a lock that was made in the line before",
    ("llmtop/integrations/hooked.py", "is_by_hand"): NO_WAIT,
    ("llmtop/integrations/jax.py", "JaxStep._begin"): NO_WAIT,
    ("llmtop/integrations/jax.py", "_read_rank"): NO_WAIT,
    ("llmtop/launch/spawn_detached.py", "_receive"): "a connection that select() has seen come",
    ("llmtop/launch/spawn_detached.py", "_run_and_exit"): "the process of a keeper: the main loop of its starter",
    ("llmtop/launch/spawn_detached.py", "start"): "its own child, which SIGKILL has just ended",
    ("tui/cluster/app.py", "ClusterApp._capture"): "Call.result: see tui/cluster/capture_line.py",
    ("tui/cluster/capture_line.py", "Call.result"): "`llmtop capture`, each wait of which has a limit",
}


def waits(root: Path) -> Iterator[tuple[str, str, int, str]]:
    """File, function, line and text of each call below `root` that may wait without a limit."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for where, call in _calls(ast.parse(path.read_text()), ""):
                if _waits_for_ever(call):
                    yield name, where or "<module>", call.lineno, ast.unparse(call)


def _calls(node: ast.AST, where: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call):
            yield where, child
        yield from _calls(child, inside)


def _waits_for_ever(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    method = function.rpartition(".")[2]
    named = {keyword.arg for keyword in call.keywords}
    if function in NEVER:
        return True
    if function in NO_TIMEOUT:
        return "timeout" not in named and not (function.endswith("create_connection") and len(call.args) > 1)
    if function in {"os.waitpid", "os.waitid"}:
        return "WNOHANG" not in ast.unparse(call)
    if function == "select.select":
        return len(call.args) < 4
    if function == "fcntl.flock":
        return "LOCK_NB" not in ast.unparse(call) and "LOCK_UN" not in ast.unparse(call)
    if method in {"read", "readline", "readlines"} and "." in function:
        return function.split(".")[-2] in PIPES and not call.args
    if method == "communicate":
        return "timeout" not in named
    return method in NO_ARGUMENTS and "." in function and not call.args and not named


def test_no_call_of_the_product_waits_without_a_limit() -> None:
    found = [one for one in waits(REPOSITORY) if one[:2] not in ALLOWED]
    assert not found, "give it a limit, or a line with the reason in ALLOWED:\n" + "\n".join(map(str, found))


def test_each_reason_is_of_a_wait_that_is_there() -> None:
    assert set(ALLOWED) <= {one[:2] for one in waits(REPOSITORY)}


@pytest.mark.parametrize(
    ("line", "waits_for_ever"),
    [
        ("thread.join()", True),
        ("thread.join(2.0)", False),
        ("process.wait()", True),
        ("process.wait(timeout=3)", False),
        ("process.communicate(b'x')", True),
        ("process.communicate(b'x', timeout=3)", False),
        ("queue.get()", True),
        ("lock.acquire()", True),
        ("lock.acquire(blocking=False)", False),
        ("subprocess.run(['x'])", True),
        ("subprocess.run(['x'], timeout=1)", False),
        ("os.waitpid(1, 0)", True),
        ("os.waitpid(1, os.WNOHANG)", False),
        ("select.select([a], [], [])", True),
        ("select.select([a], [], [], 1)", False),
        ("fcntl.flock(f, fcntl.LOCK_EX)", True),
        ("fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("process.stdout.readline()", True),
        ("','.join(words)", False),
    ],
)
def test_such_a_call_is_found(tmp_path: Path, line: str, waits_for_ever: bool) -> None:
    (tmp_path / "llmtop").mkdir()
    (tmp_path / "llmtop" / "a.py").write_text(f"def f():\n    {line}\n")
    found = [(file, where) for file, where, _, _ in waits(tmp_path)]
    assert found == ([("llmtop/a.py", "f")] if waits_for_ever else [])


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > 0
    lifted = re.compile(r"mark\.timeout\(\s*(0|None)\b")
    assert not [path for path in (REPOSITORY / "tests").rglob("test_*.py") if lifted.search(path.read_text())]

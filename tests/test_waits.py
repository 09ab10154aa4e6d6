"""Every wait ends: no call in the product, the tests or the benchmarks waits without a limit, but those whose
reasons stand here.

Loops are not judged here: each ends by a deadline of its own, or is the main loop of a thread or a process. In
tests and benchmarks reads of a pipe are not judged either: they end with the process at its other end, and with
the limit of pytest-timeout, which holds for every test. Programs of tests/foreign/scripts know no llmtop and have
no limits of their own: tests/foreign/runs.py kills them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.shape

PRODUCT = ("llmtop", "collectors", "tui")
CHECKS = ("tests", "benchmarks")
FOREIGN = "tests/foreign/scripts/"
NO_ARGUMENTS = frozenset({"join", "wait", "result", "acquire", "accept", "communicate", "get"})
"""Methods that wait for ever when they are called without an argument; with one, it is the limit."""
NO_TIMEOUT = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "urllib.request.urlopen", "socket.create_connection", "urlopen", "create_connection",
})  # fmt: skip
"""Functions that wait for ever without `timeout=`."""
RECEIVES = frozenset({"recv", "recvfrom", "recvmsg", "recv_bytes", "recv_into"})
SOCKET_LIMIT = re.compile(r"settimeout\(|setblocking\(|MSG_DONTWAIT|timeout=|SOCK_NONBLOCK|make_pair")
"""What gives the sockets of a file their limit."""
NEVER = frozenset({"os.wait", "signal.pause", "signal.sigwait"})
PIPES = frozenset({"stdout", "stderr", "stdin"})

NOT_THREADED = "asyncio, whose test has a limit"
KILLED = "its own child, which SIGKILL has just ended, or which ends by itself"
PEER = "a peer of the test, in a thread or process that ends with the test"
NO_WAIT = "returns at once: nothing of threading, subprocess or socket"
MAIN_LOOP = "the main loop of a thread or process of llmtop, which waits for work"
KEY = "waits for a key"
LIMITED = "PerfRun.wait, which has a limit of its own"
ALLOWED = {
    ("collectors/driver/serve.py", "_send_readings"): MAIN_LOOP,
    ("collectors/driver/serve.py", "serve"): MAIN_LOOP,
    ("collectors/record_stage.py", "RecordStage._write"): MAIN_LOOP,
    ("collectors/run_notes/node_writer.py", "NodeWriter._run"): MAIN_LOOP,
    ("collectors/trainings/source.py", "StepsSource._take_opened"): "only this thread takes, and it is not empty",
    ("collectors/replay.py", "ReplayFeed._wait"): f"{KEY}: the replay is paused",
    ("llmtop/capture/kineto/daemon.py", "FabricHost._accept"): "a socket that does not block",
    ("llmtop/capture/kineto/spawn.py", "_spawn"): "its own fork, which forks once more and exits",
    ("llmtop/capture/perf/recording.py", "PerfRecording.read_counters"): LIMITED,
    ("llmtop/capture/perf/recording.py", "PerfRecording.read_stacks"): LIMITED,
    ("llmtop/capture/torch_xla/ports.py", "_is_http2_greeting"): "a socket to which its caller gave a limit",
    ("llmtop/capture/torch_xla/trace_program.py", "main"): "the monitor's word; hanging up ends it too",
    ("llmtop/cli/live/alert_command.py", "AlertCommand._run"): MAIN_LOOP,
    ("llmtop/cli/live/webhook.py", "Webhook._run"): MAIN_LOOP,
    ("llmtop/instrument/auto/training/loop_state.py", "LoopState.__init__"): NO_WAIT,
    ("llmtop/instrument/record/overlapping.py", "Tracks._own"): NO_WAIT,
    ("llmtop/instrument/record/overlapping.py", "Tracks._for_phase"): NO_WAIT,
    ("llmtop/instrument/run_log/writer.py", "RunLog._forget_wakes"): "a socket that does not block",
    ("llmtop/instrument/serve/server.py", "Server.__init__"): "a new lock",
    ("llmtop/integrations/hooked.py", "is_by_hand"): NO_WAIT,
    ("llmtop/integrations/jax.py", "JaxStep._begin"): NO_WAIT,
    ("llmtop/integrations/jax.py", "_read_rank"): NO_WAIT,
    ("llmtop/launch/spawn_detached.py", "_receive"): "a connection that select() has seen come",
    ("llmtop/launch/spawn_detached.py", "_run_and_exit"): "the process of a keeper: the main loop of its starter",
    ("llmtop/launch/spawn_detached.py", "start"): "its own child, which SIGKILL has just ended",
    ("tui/cluster/app.py", "ClusterApp._capture"): "Call.result: see tui/cluster/capture_line.py",
    ("tui/cluster/capture_line.py", "Call.result"): "`llmtop capture`, each wait of which has a limit",
    ("tui/terminal/session.py", "TerminalGuard._watch"): MAIN_LOOP,
    ("tests/capture/training.py", "waits_for_orders"): PEER,
    ("tests/collectors/dcgm/test_listener.py", "test_roots_listener_is_believed_by_an_ordinary_user"): KILLED,
    ("tests/gpu/eight/known_load.py", "Load.chunk"): "Load.wait, which waits for a GPU",
    ("tests/gpu/eight/known_load.py", "Load.products"): "Load.wait, which waits for a GPU",
    ("tests/instrument/guest/test_guard.py", "test_an_error_without_a_text_is_noted_all_the_same"): NO_WAIT,
    (
        "tests/instrument/serve/stacks/test_looks_keep_nothing.py",
        "Function._holds",
    ): "released after 60 s",
    (
        "tests/instrument/serve/stacks/test_looks_keep_nothing.py",
        "Function.run",
    ): "a new lock",
    ("tests/support/ending_training.py", "_end"): KILLED,
    ("tests/support/hostile_screens.py", "Tour.drawn"): NOT_THREADED,
    ("tests/support/other_user.py", "OtherUser.__exit__"): KILLED,
    ("tests/support/other_user.py", "listening_as"): f"{PEER}; {KILLED}",
    ("tests/support/preloaded.py", "serve"): "a child of which a pidfd has reported the end",
    ("tests/support/ras_server.py", "RasServer._serve"): PEER,
    ("tests/support/repeat_tests.py", "main"): "as_completed has yielded it",
    ("tests/support/steps.py", "show"): NO_WAIT,
    ("tests/support/wire_peer.py", "_serve"): PEER,
    ("tests/support/zygote.py", "<module>"): KILLED,
}


def waits(root: Path, packages: Sequence[str] = PRODUCT) -> Iterator[tuple[str, str, int, str]]:
    """File, function, line and text of each call below `root` that may wait without a limit."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            name, text = path.relative_to(root).as_posix(), path.read_text()
            if name.startswith(FOREIGN):
                continue
            is_check, is_limited = package in CHECKS, SOCKET_LIMIT.search(text) is not None
            for where, call in _calls(ast.parse(text), ""):
                if is_check and _reads_pipe(call):
                    continue
                if _waits_for_ever(call, is_limited=is_limited, is_check=is_check):
                    yield name, where or "<module>", call.lineno, ast.unparse(call)


def _calls(node: ast.AST, where: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call):
            yield where, child
        yield from _calls(child, inside)


def _reads_pipe(call: ast.Call) -> bool:
    words = ast.unparse(call.func).split(".")
    return len(words) > 1 and words[-1] in ("read", "readline", "readlines") and words[-2] in PIPES


def _waits_for_ever(call: ast.Call, *, is_limited: bool, is_check: bool) -> bool:
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
    if _reads_pipe(call):
        return not call.args
    if method == "accept" and is_check and is_limited:
        return False
    if method in RECEIVES and "." in function:
        return not is_limited and function != "socket.recv_fds"
    if method == "poll" and "poll" in function.rpartition(".")[0]:
        return not call.args
    if method == "communicate":
        return "timeout" not in named
    return method in NO_ARGUMENTS and "." in function and not call.args and not named


def test_no_call_waits_without_a_limit() -> None:
    found = [one for one in waits(REPOSITORY, (*PRODUCT, *CHECKS)) if one[:2] not in ALLOWED]
    assert not found, "give it a limit, or a line with the reason in ALLOWED:\n" + "\n".join(map(str, found))


def test_each_reason_is_of_a_wait_that_is_there() -> None:
    assert set(ALLOWED) <= {one[:2] for one in waits(REPOSITORY, (*PRODUCT, *CHECKS))}


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
        ("channel.recv(4)", True),
        ("channel.settimeout(1), channel.recv(4)", False),
        ("poll.poll()", True),
        ("poll.poll(100)", False),
        ("process.poll()", False),
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

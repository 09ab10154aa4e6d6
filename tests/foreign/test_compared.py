"""That the comparison finds what it is for: programs that do behave otherwise below `llmtop run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.__main__ import found_in
from tests.foreign.program import read

PLANTED = {
    "exit code": "sys.exit(4)",
    "stdout": "print('more')",
    "stderr": "print('more', file=sys.stderr)",
    "file left.txt": "open('left.txt', 'w').close()",
    "main: a value": "value = 1.0 + 2**-52",
    "main: random": "random.random()",
    "main: threads": "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    "main: signal handlers": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "main: signal mask": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})",
    "main: timers": "signal.setitimer(signal.ITIMER_VIRTUAL, 90, 5)",
    "main: wake-up descriptor": "os.set_blocking(1, False); signal.set_wakeup_fd(1)",
    "main: sys.path": "sys.path.append('/nowhere')",
    "main: sys.meta_path": "sys.meta_path.append(Finder())",
    "main: hooks of sys": "sys.excepthook = print",
    "main: sys.gettrace": "sys.settrace(lambda *event: None)",
    "main: warning filters": "warnings.simplefilter('ignore')",
    "main: garbage collector": "gc.callbacks.append(print) or gc.disable()",
    "main: limits": "sys.setswitchinterval(0.1)",
    "main: environment": "os.environ['MORE'] = '1'",
    "main: umask": "os.umask(0o027)",
    "main: folder": "os.chdir('/')",
    "main: descriptors (what": "held = open('/dev/null')",
    "main: descriptors that are no longer": "os.close(0)",
    "main: descriptors that a child inherits": "os.set_inheritable(os.eventfd(0), True)",
    "process main came to its end in one run only": "os._exit(0)",
}


def program(tmp_path: Path, header: str, changed: str) -> Path:
    """One that does something only below `llmtop run`, then ends as the others."""
    path = tmp_path / "planted.py"
    path.write_text(
        f"{header}\n"
        "import gc, os, random, signal, sys, threading, time, warnings\n"
        "import digest\n"
        "class Finder:\n"
        "    def find_spec(self, *args): return None\n"
        "digest.seed()\n"
        "value = 1.0\n"
        "code = 0\n"
        "if 'LLMTOP_RUN_ABI' in os.environ:\n"
        f"    {changed.replace('sys.exit(4)', 'code = 4')}\n"
        "digest.add('a value', value)\n"
        "digest.end()\n"
        "gc.callbacks.clear()\n"
        "sys.exit(code)\n"
    )
    return path


@pytest.mark.slow(
    "two plants stand for all; each runs a program",
    kept=(
        "stdout",
        "main: a value",
    ),
)
@pytest.mark.parametrize("where", PLANTED)
def test_what_is_planted_is_found(where: str, tmp_path: Path) -> None:
    path = program(tmp_path, "#: steps = none", PLANTED[where])
    found = found_in(read("planted", path), tmp_path / "runs")
    assert any(line.startswith(f"run: {where}") for line in found), found


POOL = "threading.Thread(target=time.sleep, args=(20,), name='Pool-1_0', daemon=True).start()"


@pytest.mark.slow("one pattern stands for all; each runs a program", kept=("Poo-False-True",))
@pytest.mark.parametrize("there", [True, False])  # below `llmtop run` alone, or in the plain run alone
@pytest.mark.parametrize(("passing", "equal"), [("Other-* Pool-*", True), ("Other-*", False), ("Poo", False)])
def test_only_threads_that_the_header_names_may_come_and_go(
    passing: str, equal: bool, there: bool, tmp_path: Path
) -> None:
    path = program(tmp_path, f"#: steps = none\n#: passing_threads = {passing}", POOL)
    if not there:
        path.write_text(path.read_text().replace("if 'LLMTOP_RUN_ABI' in", "if 'LLMTOP_RUN_ABI' not in"))
    found = found_in(read("planted", path), tmp_path / "runs")
    if equal:
        assert not found
    else:
        assert len(found) == 1, found
        assert found[0].startswith("run: main: threads")


FORKS = """
#: steps = none
#: steps[child] = none
import os, threading, time
import digest
closer = threading.Thread(target=lambda: time.sleep(0.5) or held.close())
if 'LLMTOP_RUN_ABI' in os.environ:
    held = open('/proc/stat')
    if CLOSES:
        closer.start()
pid = os.fork()
if pid == 0:
    digest.end('child')
    os._exit(0)
os.waitpid(pid, 0)
if closer.ident:
    closer.join()
    del held
digest.end()
"""


@pytest.mark.slow("test_foreign.py, whose programs fork, is slow as well")
@pytest.mark.parametrize("closes", [True, False])
def test_a_child_may_keep_a_file_that_a_thread_has_in_use_at_the_fork(closes: bool, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(FORKS.lstrip().replace("CLOSES", str(closes)))
    found = found_in(read("planted", path), tmp_path / "runs")
    if closes:
        assert not found
    else:
        assert [line.partition(" (")[0] for line in found] == ["run: child: descriptors", "run: main: descriptors"]


FAILS = """
import os, sys, traceback
import digest
def loss():
    raise ValueError("a bad batch")
fails = loss
if 'LLMTOP_RUN_ABI' in os.environ:
    import llmtop
    fails = llmtop.phase("loss")(loss)
try:
    fails()
except ValueError:
    traceback.print_exc(file=sys.STREAM)
digest.end()
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_frames_of_llmtop_are_no_difference_wherever_a_traceback_is_printed(stream: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text("#: steps = none\n" + FAILS.replace("STREAM", stream))
    found = found_in(read("planted", path), tmp_path / "runs")
    assert [line for line in found if stream in line] == []


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    path = program(tmp_path, "#: steps = none", "pass")
    assert found_in(read("planted", path), tmp_path / "runs") == []


STEPS = """
import digest, os, sys
if 'LLMTOP_RUN_ABI' in os.environ:
    import llmtop
    for i in range(6):
        with llmtop.step(tokens=7), llmtop.phase("one"):
            pass
digest.end()
"""


@pytest.mark.slow("each runs a program twice; test_what_is_planted_is_found has other faults of such a program")
@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        ("steps = 6", None),
        ("steps = 4..6", None),
        ("steps = 7", "the last step is number 6; right is 7"),
        ("steps = 5", "the last step is number 6; right is 5"),
        ("steps = none", "it publishes 6 steps"),
        ("steps = unknown", "it publishes steps 0 to 5"),
        ("steps = 6\n#: phases = one", None),
        ("steps = 6\n#: phases = one two", "the phases of a step are ['one']"),
        ("steps = 6\n#: tokens = 7", None),
        ("steps = 6\n#: tokens = 8", "a step has 7.0 tokens; right is 8"),
        ("steps = 6\n#: note = words", "the monitor notes None, not 'words'"),
    ],
)
def test_what_the_monitor_says_is_judged(header: str, wrong: str | None, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(f"#: {header}\n{STEPS}")
    found = found_in(read("planted", path), tmp_path / "runs")
    said = [line for line in found if "thread" not in line]  # of the publishing itself
    assert len(said) == (wrong is not None), found
    assert wrong is None or wrong in said[0]


def test_a_header_with_a_word_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path, "#: steps = none\n#: stepz = 4", "pass")
    with pytest.raises(ValueError, match="stepz"):
        read("planted", path)

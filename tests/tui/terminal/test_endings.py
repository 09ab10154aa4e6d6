"""Whatever ends, stops or breaks the screen: its terminal is as it was, and the exit status is the true one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from llmtop.system import procfs
from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal
from tests.tui.terminal.test_session import SCREEN, assert_given_back

FAULTS = [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT]
HARMLESS = [signal.SIGWINCH, signal.SIGCHLD, signal.SIGURG, signal.SIGPIPE]
ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logs go."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "llmtop"


@pytest.fixture
def patient_guardian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guardian whose limit is a minute, not two seconds: on a busy machine its programs start late."""
    sleep = tmp_path / "patient" / "sleep"
    sleep.parent.mkdir()
    sleep.write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 60\n")
    sleep.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sleep.parent}:{os.environ['PATH']}")


def stopped(terminal: Terminal) -> bool:
    return bool(psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)


def guardians(terminal: Terminal) -> list[psutil.Process]:
    children = psutil.Process(terminal.process.pid).children()
    return [child for child in children if any("guardian.sh" in word for word in child.cmdline())]


def draws(terminal: Terminal, words: str, keys: str) -> None:
    """After these keys it draws these words anew."""
    seen = len(terminal.raw)
    terminal.keys(keys)
    try:
        wait_for(lambda: words.encode() in terminal.raw[seen:], what=f"{words!r} after {keys!r}")
    except AssertionError as error:
        started = psutil.Process(terminal.process.pid)
        states = [
            (one.pid, one.name(), one.status(), [procfs.wait_channel(one.pid, each.id) for each in one.threads()])
            for one in (started, *started.children(recursive=True))
        ]
        raise AssertionError(f"{error}; it wrote {terminal.raw[seen:][-600:]!r}; {states}") from None


def screen_lives(terminal: Terminal) -> None:
    """It shows another screen when asked, and comes back."""
    draws(terminal, "Keys on the main screen", "?")
    draws(terminal, "tokens/s", "q")


@pytest.mark.slow(
    "two signals of four; each starts a screen",
    kept=(
        "3",
        "10",
    ),
)
@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM])
def test_a_signal_that_would_kill_ends_it_with_its_number(number: signal.Signals) -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        terminal.process.send_signal(number)
        assert terminal.ends() == 128 + number
        assert_given_back(terminal)


@pytest.mark.slow("the signal that terminals send; each starts a screen", kept=("28",))
@pytest.mark.parametrize("number", HARMLESS)
def test_a_signal_that_means_nothing_changes_nothing(number: signal.Signals) -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        for _ in range(3):
            terminal.process.send_signal(number)
        screen_lives(terminal)
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.slow(
    "two faults of five; each starts a screen",
    kept=(
        "11",
        "6",
    ),
)
@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.usefixtures("patient_guardian")
def test_a_fault_gives_the_terminal_back_before_anybody_learns_of_it(
    number: signal.Signals, state_home: Path
) -> None:
    with Terminal(SCREEN, (200, 50)) as terminal:
        terminal.shows("tokens/s")
        terminal.process.send_signal(number)
        assert terminal.ends() == -number
        assert terminal.attributes() == terminal.before  # at once: the dying process waited for it
        assert_given_back(terminal)
        terminal.shows("llmtop: the screen died of a fault", 60)
        (log,) = state_home.iterdir()
        assert str(log) in terminal.text().replace("\n", "")
        wait_for(lambda: "most recent call first" in log.read_text(), what="the traceback in the log")


@pytest.mark.slow("one half sequence stands for all; each starts a screen", kept=("7-a title",))
@pytest.mark.parametrize("half", [b"\x1b]2;half a title", b"\x1b[38;2;1"], ids=["a title", "a colour"])
@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGKILL])
def test_what_is_said_after_a_crash_is_shown_though_the_screen_died_within_a_sequence(
    number: signal.Signals, half: bytes
) -> None:
    with Terminal(SCREEN, (200, 50)) as terminal:
        terminal.shows("tokens/s")
        terminal.process.send_signal(signal.SIGSTOP)
        terminal.write_as_the_program(half)
        terminal.process.send_signal(number)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.ends()
        wait_for(lambda: b"\x1b[?1049l" in terminal.raw, what="the screen of before")
        terminal.write_as_the_program(b"\r\nwhat the shell says")
        terminal.shows("what the shell says")


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
@pytest.mark.usefixtures("patient_guardian")
def test_a_real_fault_in_a_librarys_thread_does_the_same(tmp_path: Path) -> None:
    program = tmp_path / "faulty.py"
    program.write_text(
        "import ctypes, os, sys, threading, time\n"
        "from tests.support import screen\n"
        "def crash():\n"
        "    while not os.path.exists(sys.argv[0] + '.now'):\n"
        "        time.sleep(0.01)\n"
        "    ctypes.string_at(0)\n"
        "threading.Thread(target=crash, daemon=True).start()\n"
        "sys.argv[1:] = ['--gpus', '1']\n"
        "sys.exit(screen.main())\n"
    )
    with Terminal([sys.executable, str(program)]) as terminal:
        terminal.shows("tokens/s")
        Path(f"{program}.now").touch()
        assert terminal.ends() == -signal.SIGSEGV
        assert terminal.attributes() == terminal.before
        assert_given_back(terminal)


@pytest.mark.slow(
    "a death that takes a second; test_a_fault_gives_the_terminal_back_before_anybody_learns_of_it has others"
)
def test_no_frame_follows_the_sentence_after_a_fault_of_a_library(tmp_path: Path) -> None:
    """The other threads draw on until the process is dead, which takes a second here."""
    slow = tmp_path / "bin" / "cat"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("cat")} "$@"\n')
    slow.chmod(0o755)
    program = tmp_path / "faulty.py"
    program.write_text(
        "import ctypes, os, sys, threading, time\n"
        "from tests.support import screen\n"
        "def crash():\n"
        "    while not os.path.exists(sys.argv[0] + '.now'):\n"
        "        time.sleep(0.01)\n"
        "    ctypes.CDLL(None).strlen(None)  # without the GIL\n"
        "threading.Thread(target=crash, daemon=True).start()\n"
        "sys.argv[1:] = ['--gpus', '1', '--interval', '0.05']\n"
        "sys.exit(screen.main())\n"
    )
    with Terminal(
        [sys.executable, str(program)], (200, 50), PATH=f"{slow.parent}:{os.environ['PATH']}"
    ) as terminal:
        terminal.shows("tokens/s", 60)
        Path(f"{program}.now").touch()
        assert terminal.ends(60) == -signal.SIGSEGV
        terminal.shows("llmtop: the screen died of a fault", 60)
        assert b"\x1b" not in terminal.raw.partition(b"died of a fault")[2]


def test_sigkill_gives_the_terminal_back_and_leaves_nobody_behind() -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        (guardian,) = guardians(terminal)
        terminal.process.kill()
        assert terminal.ends() == -signal.SIGKILL
        wait_for(lambda: terminal.attributes() == terminal.before, what="the settings of before")
        assert_given_back(terminal)
        wait_for(lambda: not guardian.is_running(), what="the guardian's end")


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_settings_that_a_shell_made_after_sigkill_are_left_alone() -> None:
    """A shell may be quicker than the guardian, and then the terminal is its own."""
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        (guardian,) = guardians(terminal)
        guardian.suspend()
        terminal.process.kill()
        terminal.ends()
        terminal.change_settings("intr", "^X")
        ours = terminal.attributes()
        guardian.resume()
        wait_for(lambda: ALTERNATE_OFF in terminal.raw, what="the other screen left")
        wait_for(lambda: not guardian.is_running(), what="the guardian's end")
        assert terminal.attributes() == ours


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_without_the_guardian_the_screen_works_and_a_fault_is_only_a_fault() -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        for guardian in guardians(terminal):
            guardian.kill()
        screen_lives(terminal)
        terminal.process.send_signal(signal.SIGSEGV)
        assert terminal.ends() == -signal.SIGSEGV


def test_a_quiet_end_leaves_no_guardian_and_no_log(state_home: Path) -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        (guardian,) = guardians(terminal)
        terminal.keys("q")
        assert terminal.ends() == 0
        assert not guardian.is_running()
        assert not list(state_home.iterdir())
        assert terminal.raw.count(ALTERNATE_OFF) == terminal.raw.count(ALTERNATE_ON)


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGSEGV, signal.SIGKILL])
def test_a_stalled_terminal_gets_its_settings_at_once_and_the_rest_when_it_reads_again(
    number: signal.Signals,
) -> None:
    with Terminal([*SCREEN, "--interval", "0.02"]) as terminal:
        terminal.shows("tokens/s")
        terminal.stop_reading()
        wait_for(terminal.is_full, what="a terminal that takes no more")
        terminal.process.send_signal(number)
        assert terminal.ends() in (128 + number, -number)
        wait_for(lambda: terminal.attributes() == terminal.before, what="the settings of before")
        terminal.go_on_reading()
        wait_for(lambda: terminal.raw.rfind(ALTERNATE_OFF) > terminal.raw.rfind(ALTERNATE_ON), what="the rest")
        assert_given_back(terminal)


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_stopped_and_continued_it_gives_the_terminal_back_and_takes_it_again() -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        taken = terminal.attributes()
        for _ in range(3):
            terminal.process.send_signal(signal.SIGTSTP)
            wait_for(lambda: stopped(terminal), what="stopped")
            assert terminal.attributes() == terminal.before
            wait_for(
                lambda: terminal.raw.rfind(ALTERNATE_OFF) > terminal.raw.rfind(ALTERNATE_ON), what="given back"
            )
            seen = len(terminal.raw)
            terminal.process.send_signal(signal.SIGCONT)
            wait_for(lambda seen=seen: b"tokens/s" in terminal.raw[seen:], what="drawn anew")
            wait_for(lambda: terminal.attributes() == taken, what="its settings")
            screen_lives(terminal)
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_sigstop_cannot_be_seen_but_after_it_everything_is_set_and_drawn_anew() -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        taken = terminal.attributes()
        for _ in range(3):
            terminal.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: stopped(terminal), what="stopped")
            terminal.change_settings("sane")  # as shells do
            seen = len(terminal.raw)
            terminal.process.send_signal(signal.SIGCONT)
            wait_for(lambda seen=seen: b"tokens/s" in terminal.raw[seen:], what="drawn anew")
            wait_for(lambda: terminal.attributes() == taken, what="its settings")
            screen_lives(terminal)
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(
            signal.SIGTSTP,
            marks=pytest.mark.slow(
                "the other stop is in test_in_bash_it_can_be_stopped_put_in_the_background_and_fetched_again"
            ),
        ),
        signal.SIGSTOP,
    ],
    ids=str,
)
def test_a_key_pressed_before_it_has_come_back_is_not_lost(by: signal.Signals) -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        terminal.process.send_signal(by)
        wait_for(lambda: stopped(terminal), what="stopped")
        terminal.change_settings("sane")  # as shells do: of an unfinished line nothing can be read
        terminal.keys("?")
        terminal.process.send_signal(signal.SIGCONT)
        terminal.shows("Keys on the main screen")
        draws(terminal, "tokens/s", "q")


@pytest.fixture
def in_bash(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """A real interactive bash that runs the screen."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = tmp_path / "screen"
    script.write_text(f"#!/bin/sh\nexec {shlex.join(SCREEN)}\n")
    script.chmod(0o755)
    opened: list[Terminal] = []

    def start() -> Terminal:
        terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], PS1="shell> ")
        opened.append(terminal)
        terminal.shows("shell>")
        terminal.keys(f"{script}\r")
        terminal.shows("tokens/s")
        return terminal

    yield start
    for terminal in opened:
        terminal.__exit__()


def monitor_in(terminal: Terminal) -> psutil.Process:
    (child,) = psutil.Process(terminal.process.pid).children()
    return child


def is_stopped(process: psutil.Process) -> bool:
    """Return True if all of its threads are: only then does the shell hear of it, and `fg` continues it."""
    return {procfs.thread_state(process.pid, each.id) for each in process.threads()} == {"T"}


def prompts(terminal: Terminal, seen: int) -> None:
    """The shell has asked for a command since so many bytes."""
    wait_for(lambda: b"shell> " in terminal.raw[seen:], what="the shell's prompt")


def answers(terminal: Terminal, command: str, words: str) -> None:
    """The shell echoes what is typed, does it, and asks again."""
    seen = len(terminal.raw)
    terminal.keys(f"{command}\r")
    wait_for(lambda: words.encode() in terminal.raw[seen:], what=f"{words!r} after {command!r}")
    prompts(terminal, terminal.raw.rfind(words.encode()))


@pytest.mark.parametrize(
    "by",
    [
        "ctrl+z",
        pytest.param(signal.SIGTSTP, marks=pytest.mark.slow("the same stop by another sender")),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow("a stop that no program can see, by the same shell")),
    ],
    ids=str,
)
def test_in_bash_it_can_be_stopped_put_in_the_background_and_fetched_again(
    in_bash: Callable[..., Terminal], by: str | signal.Signals
) -> None:
    terminal = in_bash()
    monitor = monitor_in(terminal)
    for _ in range(2):
        seen = len(terminal.raw)
        if isinstance(by, str):
            terminal.keys("\x1a")
        else:
            monitor.send_signal(by)
        wait_for(lambda seen=seen: b"Stopped" in terminal.raw[seen:], what="the shell's word")
        prompts(terminal, seen)
        answers(terminal, "echo still $((40 + 2))", "still 42")
        # It goes on, and is stopped again since it is not its turn: not merely still stopped.
        switches = sum(monitor.num_ctx_switches())
        terminal.keys("bg\r")
        wait_for(
            lambda switches=switches: (
                sum(monitor.num_ctx_switches()) > switches  # type: ignore[misc]
                and is_stopped(monitor)
            ),
            what="stopped again",
        )
        answers(terminal, "echo again $((40 + 3))", "again 43")
        draws(terminal, "tokens/s", "fg\r")
        screen_lives(terminal)
    seen = len(terminal.raw)
    terminal.keys("q")
    prompts(terminal, seen)
    answers(terminal, "echo left with $?", "left with 0")


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
@pytest.mark.usefixtures("patient_guardian")
def test_in_bash_a_crash_is_told_with_its_status_and_the_shell_goes_on(in_bash: Callable[..., Terminal]) -> None:
    terminal = in_bash()
    seen = len(terminal.raw)
    monitor_in(terminal).send_signal(signal.SIGSEGV)
    prompts(terminal, seen)
    assert terminal.raw.index(b"llmtop: the screen died of a fault", seen) < terminal.raw.rindex(b"shell> ")
    answers(terminal, "echo left with $?", "left with 139")


BROKEN = """
import sys, threading
from collectors import replay
def broken(*_, **__):
    raise ZeroDivisionError("planted")
def plant(owner, name):
    getattr(owner, name)  # a plant where nothing stands would never act
    setattr(owner, name, broken)
{plant}
from llmtop.__main__ import main
main({argv!r})
"""
PLANTS = {
    "a thread": "plant(replay.ReplayFeed, '_judge')",
    "the app": "import tui.app; plant(tui.app.LlmtopApp, 'take_arrived')",
    "drawing": "import tui.screens.main; plant(tui.screens.main.MainScreen, 'redraw')",
    "the start": "import tui.app; plant(tui.app.LlmtopApp, 'on_mount')",
    "the input": "import tui.terminal.keyboard; plant(tui.terminal.keyboard.Keyboard, 'tick')",
    "the end": "plant(replay.ReplayFeed, 'close')",
}


@pytest.mark.slow("one place of six; each starts a screen", kept=("a thread",))
@pytest.mark.parametrize("where", PLANTS)
def test_an_error_nobody_expected_is_one_sentence_a_log_and_70(where: str, state_home: Path) -> None:
    program = BROKEN.format(plant=PLANTS[where], argv=["demo"])
    with Terminal([sys.executable, "-c", program], (200, 50)) as terminal:
        if where == "the end":
            terminal.shows("REPLAY")
            terminal.keys("q")
        assert terminal.ends() == 70
        assert_given_back(terminal)
        terminal.shows("ended it (ZeroDivisionError: planted); please report it with")
        (log,) = state_home.iterdir()
        assert str(log) in terminal.text().replace("\n", "")
        assert re.search(r"Traceback[\s\S]*ZeroDivisionError: planted", log.read_text())


@pytest.mark.slow("one command stands for all; each is a process", kept=("--once-",))
@pytest.mark.parametrize(
    ("argv", "plant"),
    [
        (["demo", "--json"], PLANTS["a thread"]),
        (["doctor"], "import llmtop.cli.doctor.command; plant(llmtop.cli.doctor.command, 'diagnose')"),
        (["captures"], "from llmtop.capture.base import folder; plant(folder, 'list_infos_and_errors')"),
        (["--once"], "import collectors.hub; plant(collectors.hub, 'live_hub')"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_so_it_is_for_every_command(argv: list[str], plant: str, state_home: Path) -> None:
    program = BROKEN.format(plant=plant, argv=argv)
    env = environment()
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=env,
        check=False,
        timeout=240,
    )
    assert done.returncode == 70
    (log,) = state_home.iterdir()
    assert done.stderr.splitlines()[-1] == (
        f"llmtop: an error of llmtop's own ended it (ZeroDivisionError: planted); please report it with {log}"
    )
    assert "Traceback" not in done.stderr
    assert "Traceback" in log.read_text()


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/1"), reason="needs /proc")
def test_without_a_place_for_the_log_the_sentence_says_where_it_was(tmp_path: Path) -> None:
    plant = "import llmtop.cli.doctor.command; plant(llmtop.cli.doctor.command, 'diagnose')"
    env = environment(XDG_STATE_HOME="/proc/1", TMPDIR="/proc/1")
    program = "import tempfile; tempfile.tempdir = '/proc/1'\n" + BROKEN.format(plant=plant, argv=["doctor"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=env,
        check=False,
        timeout=240,
    )
    assert done.returncode == 70
    assert re.search(r"planted\) at <string>:\d+; no log of it could be written", done.stderr)


def test_twenty_logs_are_kept(state_home: Path) -> None:
    state_home.mkdir(parents=True)
    for number in range(30):
        (state_home / f"error-20200101-{number:06d}-1.log").write_text("old")
    program = BROKEN.format(
        plant="import llmtop.cli.doctor.command; plant(llmtop.cli.doctor.command, 'diagnose')", argv=["doctor"]
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env=environment(), check=False, timeout=240)
    names = sorted(path.name for path in state_home.iterdir())
    assert len(names) == 20
    assert names[0] == "error-20200101-000011-1.log"
    assert not names[-1].startswith("error-2020")

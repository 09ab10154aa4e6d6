"""The program in real terminals: whatever ends it, the terminal is given back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal

SCREEN = [sys.executable, "-m", "tests.support.screen", "--gpus", "2", "--interval", "0.2"]
SET, RESET = b"\x1b[?%dh", b"\x1b[?%dl"
MODES = (1049, 1000, 1003, 1006, 1004, 2004)
"""Alternate screen, mouse, focus, paste: what the app switches on and has to switch off."""


def assert_given_back(terminal: Terminal) -> None:
    """The settings are those of before, every mode is off, the cursor is shown, and there is no traceback."""
    assert terminal.attributes() == terminal.before
    wait_for(lambda: b"\x1b[?25h" in terminal.raw, what="the cursor shown again")
    for mode in MODES:
        assert terminal.raw.rfind(RESET % mode) > terminal.raw.rfind(SET % mode), mode
    assert terminal.raw.rfind(b"\x1b[?25h") > terminal.raw.rfind(b"\x1b[?25l")
    assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize("keys", ["q", "\x03"], ids=["q", "ctrl+c"])
def test_a_key_ends_it_with_0(keys: str) -> None:
    with Terminal(SCREEN, forked=False) as terminal:
        terminal.shows("tokens/s")
        terminal.keys(keys)
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_with_its_number(number: signal.Signals) -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        terminal.process.send_signal(number)
        assert terminal.ends() == 128 + number
        assert_given_back(terminal)


@pytest.mark.parametrize("controlling", [True, False], ids=["with SIGHUP", "without"])
def test_it_ends_when_its_terminal_is_gone(controlling: bool) -> None:
    with Terminal(SCREEN, controlling=controlling) as terminal:
        terminal.shows("tokens/s")
        terminal.hang_up()
        assert terminal.ends() == 128 + signal.SIGHUP


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_a_terminal_that_stops_reading_neither_grows_nor_outlives_a_signal() -> None:
    with Terminal([*SCREEN, "--interval", "0.02"]) as terminal:
        terminal.shows("tokens/s")
        terminal.stop_reading()
        process = psutil.Process(terminal.process.pid)
        time.sleep(2)
        size = process.memory_info().rss
        time.sleep(2)
        assert process.memory_info().rss < size + 20 * 2**20
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() == 128 + signal.SIGTERM
        terminal.go_on_reading()
        wait_for(lambda: terminal.attributes() == terminal.before, what="the settings of before")


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_a_terminal_that_reads_again_shows_the_present() -> None:
    with Terminal([*SCREEN, "--interval", "0.02"]) as terminal:
        terminal.shows("tokens/s")
        terminal.stop_reading()
        time.sleep(3)
        terminal.go_on_reading()
        terminal.keys("?")
        terminal.shows("Keys on the main screen")
        terminal.keys("q")
        terminal.shows("tokens/s")
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_a_storm_of_sizes_ends_in_the_right_picture() -> None:
    with Terminal(SCREEN) as terminal:
        terminal.shows("tokens/s")
        for number in range(120):
            terminal.resize(20 + number * 7 % 180, 4 + number * 5 % 50)
            time.sleep(0.005)
        terminal.resize(90, 28)
        terminal.shows("tokens/s")
        right = lambda lines: "llmtop" in lines[0] and "? help" in lines[27]  # noqa: E731
        try:
            wait_for(lambda: right(terminal.text().splitlines()), what="the header and the footer in their places")
        except AssertionError:
            raise AssertionError(f"the picture stays wrong:\n{terminal.text()}") from None
        terminal.keys("q")
        assert terminal.ends() == 0


def test_sizes_below_the_smallest_still_say_something() -> None:
    for size in ((40, 8), (20, 4), (8, 2)):
        with Terminal(SCREEN, size) as terminal:
            wait_for(lambda: terminal.text().strip(), what=f"something at {size}")
            terminal.keys("q")
            assert terminal.ends() == 0


@pytest.fixture
def tmux() -> Iterator[list[str]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    command = ["tmux", "-L", f"llmtop-{uuid.uuid4().hex[:8]}", "-f", "/dev/null"]
    yield command
    subprocess.run([*command, "kill-server"], check=False, capture_output=True, timeout=240)


def started(tmux: list[str], *arguments: str, columns: int = 80, lines: int = 24) -> None:
    run = f"{sys.executable} -m tests.support.screen {' '.join(arguments)}; echo left with $?; sleep 100"
    size = ["-x", str(columns), "-y", str(lines)]
    env = environment(LC_ALL="C.UTF-8")
    subprocess.run([*tmux, "new-session", "-d", *size, run], check=True, cwd=REPOSITORY, env=env, timeout=240)


def pane(tmux: list[str]) -> str:
    return subprocess.run(
        [*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True, timeout=240
    ).stdout


def test_in_tmux_keys_open_screens_and_q_leaves(tmux: list[str]) -> None:
    started(tmux, "--gpus", "8", "--interval", "0.2")
    wait_for(lambda: "backward" in pane(tmux), what="the main screen")
    for key, words in (
        ("p", "GPU mem"),
        ("q", "backward"),
        ("?", "Keys on the main screen"),
        ("q", "backward"),
        ("2", "GPU 2"),
    ):
        subprocess.run([*tmux, "send-keys", key], check=True, timeout=240)
        wait_for(lambda words=words: words in pane(tmux), what=f"{words!r} after {key}")
    subprocess.run([*tmux, "send-keys", "q"], check=True, timeout=240)
    wait_for(lambda: "backward" in pane(tmux), what="the main screen again")
    subprocess.run([*tmux, "send-keys", "q"], check=True, timeout=240)
    wait_for(lambda: "left with 0" in pane(tmux), what="the shell again")
    assert "H200" not in pane(tmux)


@pytest.mark.slow("test_in_tmux_keys_open_screens_and_q_leaves has a window that keeps its size")
def test_in_tmux_a_window_that_has_grown_is_left_as_it_was(tmux: list[str]) -> None:
    run = f"printf 'before\\n'; {sys.executable} -m tests.support.screen --gpus 2; echo left with $?; sleep 100"
    size = ["-x", "80", "-y", "24"]
    env = environment(LC_ALL="C.UTF-8")
    subprocess.run([*tmux, "new-session", "-d", *size, run], check=True, cwd=REPOSITORY, env=env, timeout=240)
    wait_for(lambda: "backward" in pane(tmux), what="the main screen")
    subprocess.run([*tmux, "resize-window", "-x", "120", "-y", "30"], check=True, timeout=240)
    wait_for(lambda: "CUDA 13.0" in pane(tmux), what="the wider screen")
    subprocess.run([*tmux, "send-keys", "q"], check=True, timeout=240)
    wait_for(lambda: "left with 0" in pane(tmux), what="the shell again")
    assert pane(tmux).split("\n")[:2] == ["before", "left with 0"]


@pytest.mark.slow(
    "test_in_tmux_keys_open_screens_and_q_leaves has a screen in tmux; a bell needs a window beside it"
)
def test_in_tmux_an_alert_rings_and_names_itself_in_the_title(tmux: list[str]) -> None:
    subprocess.run([*tmux, "new-session", "-d", "sleep 100"], check=True, timeout=240)
    subprocess.run([*tmux, "set", "-g", "monitor-bell", "on"], check=True, timeout=240)
    run = f"{sys.executable} -m tests.support.screen --gpus 4 --spinning 1 --interval 0.1; sleep 100"
    env = environment(LC_ALL="C.UTF-8")
    subprocess.run(
        [*tmux, "new-window", "-d", "-n", "watch", run], check=True, cwd=REPOSITORY, env=env, timeout=240
    )

    def state() -> str:
        said = [*tmux, "list-windows", "-F", "#{window_name} #{window_bell_flag} #{pane_title}"]
        return subprocess.run(said, check=True, capture_output=True, text=True, timeout=240).stdout

    wait_for(lambda: "watch 1 LOW POWER GPU 1" in state(), what="a bell and a title")


@pytest.mark.slow(
    "a screen of its own; test_without_color_none_is_sent_and_the_alert_is_still_there has another poor terminal"
)
def test_a_terminal_of_16_colors_and_a_locale_without_utf_8_are_served() -> None:
    with Terminal([*SCREEN, "--spinning", "1"], TERM="xterm", COLORTERM="", LC_ALL="de_DE.ISO-8859-1") as terminal:
        terminal.shows("LOW POWER")
        assert b"38;2;" not in terminal.raw
        assert b"38;5;" not in terminal.raw
        assert terminal.text().isascii()
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ends() == 143


@pytest.mark.slow("one variable stands for both; each starts a screen", kept=("NO_COLOR",))
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_without_color_none_is_sent_and_the_alert_is_still_there(variables: dict[str, str]) -> None:
    with Terminal([*SCREEN, "--spinning", "1"], **variables) as terminal:
        terminal.shows("LOW POWER")
        sent = {code for codes in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw) for code in codes.split(b";")}
        assert sent <= {b"", b"0", b"1", b"2", b"4", b"7"}, "only bold, dim, underline and reverse"
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("a screen of its own; ends by keys, signals, faults and ctrl+z are in make test")
def test_the_terminal_knows_its_size_better_than_the_environment() -> None:
    with Terminal(SCREEN, (90, 28), COLUMNS="60", LINES="10") as terminal:
        terminal.shows("? help")
        wait_for(lambda: "? help" in terminal.text().splitlines()[27], what="the footer on the last line")
        terminal.resize(120, 30)
        wait_for(lambda: "? help" in terminal.text().splitlines()[29], what="the footer on the last line")
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("one size stands for all; each starts a screen", kept=("no number",))
@pytest.mark.parametrize(
    ("columns", "lines"),
    [("1000000", "1000000"), ("65536", ""), ("0", "0"), ("-5", "-5"), ("x", "\u00b2"), ("9" * 5000, "9" * 5000)],
    ids=["a million", "65536", "zero", "negative", "no number", "5000 digits"],
)
def test_a_size_that_no_terminal_has_is_not_believed(columns: str, lines: str) -> None:
    with Terminal(SCREEN, (90, 28), COLUMNS=columns, LINES=lines) as terminal:
        terminal.shows("? help")
        wait_for(lambda: "? help" in terminal.text().splitlines()[27], what="the footer on the last line")
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)


@pytest.mark.slow("a screen of its own; test_a_size_that_no_terminal_has_is_not_believed has other odd sizes")
@pytest.mark.parametrize("columns", ["", "1000000"], ids=["unset", "a million"])
def test_a_terminal_without_a_size_has_80_columns_and_24_lines(columns: str) -> None:
    with Terminal(SCREEN, (0, 0), COLUMNS=columns, LINES=columns) as terminal:
        terminal.shows("? help")
        wait_for(lambda: "? help" in terminal.text().splitlines()[23], what="the footer on line 24")
        assert not any(line[80:].strip() for line in terminal.text().splitlines())
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("an odd size; test_a_size_that_no_terminal_has_is_not_believed has another")
def test_the_largest_size_that_a_kernel_knows_is_drawn_in_part_and_takes_little_memory() -> None:
    with Terminal(SCREEN, (65535, 65535)) as terminal:
        wait_for(lambda: b"LIVE" in terminal.raw, what="the first line")
        process = psutil.Process(terminal.process.pid)
        terminal.keys("?")
        wait_for(lambda: b"Keys on the main screen" in terminal.raw, what="the help")
        assert process.memory_info().rss < 200 * 2**20
        terminal.keys("q")
        terminal.keys("q")
        assert terminal.ends() == 0
        assert_given_back(terminal)

"""Command blocks of README and docs: found, and run as a reader would run them.

A command block is a fenced block without a language. Blocks of output have the language `text`; other languages
are no commands. A comment in the line before a block says why no test runs it (`<!-- not run: needs a GPU -->`,
or root, or a cluster), or which other test does (`<!-- run by tests/hosts/test_ssh.py -->`).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.processes import REPOSITORY, environment, wait_for
from tests.support.terminal import Terminal

REASON: Final = re.compile(r"<!-- not run: needs (a GPU|root|a cluster)\b.*-->$")
ELSEWHERE: Final = re.compile(r"<!-- run by (tests/[\w/]+\.py) -->$")
_FENCE: Final = re.compile(r"^ *```(\w*)$")


def _has_output(process: subprocess.Popen[str]) -> bool:
    """Return True if there is something to read of it, or it has ended."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    """Number of its first fence."""
    language: str
    text: str
    before: str
    """The line before the block."""

    @property
    def reason(self) -> str | None:
        """Why no test runs it; None where one does."""
        found = REASON.search(self.before)
        return found[1] if found else None

    @property
    def elsewhere(self) -> str | None:
        """The test that runs it in place of this module's."""
        found = ELSEWHERE.search(self.before)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """Its commands without comments; a line that ends with a backslash goes on."""
        joined = self.text.replace("\\\n", " ")
        lines = [re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in joined.splitlines()]
        return [line for line in lines if line]


def pages() -> list[str]:
    """README and the pages of docs, as paths in the repository."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in its order."""
    found: list[Block] = []
    lines = (REPOSITORY / page).read_text().splitlines()
    start: int | None = None
    language = ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start is None:
            start, language = number, fence[1]
            continue
        before = lines[start - 1].strip() if start else ""
        found.append(Block(page, start + 1, language, "\n".join(lines[start + 1 : number]), before))
        start = None
    assert start is None, f"{page}: a block has no end"
    return found


def command_blocks() -> list[Block]:
    """The command blocks of all pages."""
    return [block for page in pages() for block in blocks_of(page) if not block.language]


TRAIN: Final = """
import sys, time
import llmtop
seconds = float(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1.5
llmtop.attach()
end = time.monotonic() + seconds
while time.monotonic() < end:
    with llmtop.step(samples=8), llmtop.phase("forward"):
        time.sleep(0.004)
"""
"""Stands for a training of the reader's: steps of 4 ms, without torch, so that it starts in 0.1 s."""
ENDLESS: Final = re.compile(r"^llmtop (export(?!.*--rules)|mcp|--json|record(?!.*--(?:seconds|daemon)))")
"""Commands that run until they are interrupted; each is interrupted after `ENDLESS_S`, once it has printed."""
ENDLESS_S: Final = 4.0
DECIDES: Final = {"bench": (0, 1, 3), "compare": (0, 1, 3), "postmortem": (0, 3)}
"""Exit codes of commands that decide: on a busy machine each of them is right."""
_SCREENS: Final = re.compile(r"^(llmtop|make demo|llmtop (demo|replay \S+|runs open))$")
"""Commands that are a screen: they get a terminal, and `q` after the first frame."""
_REPLACED: Final = (
    (re.compile(r"^make demo$"), f"make -C {REPOSITORY} -o .venv/app demo"),
    (re.compile(r"^make test$"), f"make -C {REPOSITORY} -n test"),  # a test that runs all tests would not end
    (re.compile(r"llmtop-captures/NAME"), "capture"),
    (re.compile(r"\bBEFORE AFTER\b"), "capture capture"),
)


@dataclass
class Reader:
    """A folder in which the commands of pages are run, in order, as a reader runs them."""

    folder: Path
    replaced: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Placeholders of one page, before the common ones."""
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("train.py", "generate.py", "before.py", "after.py", "train_before.py"):
            (self.folder / name).write_text(TRAIN)
        capture = self.folder / "capture"
        capture.mkdir()
        trace = REPOSITORY / "tests" / "data" / "h200" / "nsys" / "launch_bound.sqlite.gz"
        shutil.copy(trace, capture / "launch_bound.sqlite.gz")
        home = self.folder / "home"
        home.mkdir()
        own = {"XDG_STATE_HOME": home / ".local" / "state", "XDG_CONFIG_HOME": home / ".config"}
        self.variables |= {name: str(path) for name, path in own.items()}
        self.variables |= {"LLMTOP_RUNS": f"{own['XDG_STATE_HOME']}/llmtop/runs"}
        self.variables |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def command(self, line: str) -> str:
        """The command with this machine's values in place of placeholders."""
        for pattern, text in (*self.replaced, *_REPLACED):
            line = pattern.sub(text, line)
        return line

    def run(self, line: str, seconds: float = 100.0) -> str:
        """Run one command of a page.

        Args:
            line: as the page has it.
            seconds: how long it may take.

        Returns:
            What it printed; of a screen the text of its first frame.

        Raises:
            AssertionError: it fails, or shows a traceback.
        """
        command = self.command(line)
        env = environment(**self.variables)
        if _SCREENS.match(line):
            return self._screen(command, seconds)
        with subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            endless = ENDLESS.match(line) is not None
            try:
                if endless:
                    time.sleep(ENDLESS_S)
                    # Before it prints, it may still import its modules, and would end with a traceback.
                    wait_for(lambda: _has_output(process), what=f"a line of {command}")
                    assert process.poll() is None, f"{line}: ended by itself"
                    os.killpg(process.pid, signal.SIGINT)
                output, _ = process.communicate(timeout=seconds)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        wanted = (0, 130, -2) if endless else DECIDES.get(line.split()[1] if " " in line else "", (0,))
        assert process.returncode in wanted, f"{line}\n{command}\nexit code {process.returncode}\n{output}"
        assert "Traceback" not in output, f"{line}\n{output}"
        return output

    def wait_for_training(self) -> None:
        """Wait until a training that was started in this folder is attached and has ended steps."""
        wait_for(lambda: "steps/s" in self.run("llmtop --once"), 200, "an attached training")

    def _screen(self, command: str, seconds: float) -> str:
        with Terminal(["bash", "-c", f"cd {self.folder} && {command}"], **self.variables) as terminal:
            wait_for(lambda: "q quit" in terminal.text(), seconds, f"the first frame of {command}")
            text = terminal.text()
            terminal.keys("q")
            assert terminal.ends() == 0
        return text

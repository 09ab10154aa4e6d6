"""Do what a newcomer does: python -m tests.support.newcomer [STEP…] [--user NAME] [--folder FOLDER] [--dry-run]

Clones the checkout's commit into an empty folder, as an ordinary user, and runs README's two commands there, then
the tutorial and every command block of README and docs. Prints for each step its time and whether it passed.

Exit codes: 0 all steps passed, 1 a step failed, 3 the user cannot run Python or git here.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pexpect

from tests.support.processes import REPOSITORY

DEMO_S: Final = 8.0
"""How long the demo plays before `q`."""
MOST_S: Final = 3600
"""Limit of one step: `make test` of a fresh clone took up to 9 minutes, beside other work more."""
PYTEST: Final = (".venv/bin/python", "-m", "pytest", "-q", "-p", "no:xdist")
BLOCKS: Final = (*PYTEST, "-m", "slow or not slow")


@dataclass(frozen=True)
class Newcomer:
    """An ordinary user with an empty folder."""

    user: pwd.struct_passwd
    folder: Path
    python: str
    """Python of `make`, which the user must be able to run."""

    @property
    def clone(self) -> Path:
        """The checkout that is made."""
        return self.folder / "llmtop"

    @property
    def log(self) -> Path:
        """Output of all commands, beside the checkout; kept with `--folder`."""
        return self.folder / "newcomer.log"

    @property
    def environment(self) -> dict[str, str]:
        """Only what a login has, and where packages come from."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "LANG"))}
        path = "/usr/local/bin:/usr/bin:/bin"
        own = {
            "HOME": str(self.folder),
            "USER": self.user.pw_name,
            "PATH": path,
            "TERM": "xterm-256color",
            "SHELL": "/bin/sh",
        }
        return {**kept, **own, "PYTHON": self.python}

    def become(self) -> None:
        """Give up root, in a child process."""
        if os.getuid() == 0 and self.user.pw_uid != 0:
            os.setgroups([])
            os.setgid(self.user.pw_gid)
            os.setuid(self.user.pw_uid)

    def run(self, *command: str, where: Path | None = None) -> str:
        """Run a command as that user; its whole output goes to `log`, where it can be read meanwhile.

        Returns:
            "" where it exits with 0, else its exit code and the end of its output.
        """
        with self.log.open("ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            began = log.tell()
            done = subprocess.run(
                command,
                cwd=where or self.clone,
                env=self.environment,
                preexec_fn=self.become,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=MOST_S,
                check=False,
            )
        output = self.log.read_bytes()[began:].decode(errors="replace")
        return "" if done.returncode == 0 else f"exit code {done.returncode}\n{output[-3000:]}"


def ordinary_user() -> pwd.struct_passwd:
    """This user; for root the first person, since 65534 (nobody) is also the uid that the kernel cannot map."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid())
    people = [one for one in pwd.getpwall() if 1000 <= one.pw_uid < 60000]
    return min(people, key=lambda one: one.pw_uid, default=pwd.getpwnam("nobody"))


def clone(who: Newcomer) -> str:
    """Clone the commit that is checked out here; git reads no repository of another user, so its owner clones."""
    command = ["git", "clone", "-q", "--no-hardlinks", str(REPOSITORY), str(who.clone)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    if done.returncode == 0 and os.getuid() == 0:
        owner = f"{who.user.pw_uid}:{who.user.pw_gid}"
        subprocess.run(["chown", "-R", owner, str(who.clone)], timeout=MOST_S, check=True)
    return done.stderr if done.returncode else who.run("git", "log", "--oneline", "-1")


def demo(who: Newcomer) -> str:
    """`make demo` in a terminal; `q` after some seconds."""
    child = pexpect.spawn(
        "make",
        ["demo"],
        cwd=str(who.clone),
        env=who.environment,
        preexec_fn=who.become,
        dimensions=(30, 100),
        timeout=MOST_S,
        encoding="utf-8",
        codec_errors="replace",
    )
    try:
        child.expect("q.{0,40}quit")
        time.sleep(DEMO_S)
        child.send("q")
        child.expect(pexpect.EOF, timeout=30)
    except (pexpect.EOF, pexpect.TIMEOUT):
        return f"no demo: {(child.before or '')[-2000:]}"
    finally:
        child.close(force=True)
    return "" if child.exitstatus == 0 else f"exit code {child.exitstatus}"


def test(who: Newcomer) -> str:
    """`make test`; no test is run twice: one that fails beside others fails for a newcomer."""
    return who.run("make", "test")


def tutorial(who: Newcomer) -> str:
    """The commands of docs/tutorial.md, in order."""
    return who.run("make", ".venv/dev") or who.run(*BLOCKS, "tests/docs/test_commands.py", "-k", "tutorial")


def blocks(who: Newcomer) -> str:
    """All other command blocks."""
    return who.run("make", ".venv/dev") or who.run(*BLOCKS, "tests/docs", "-k", "not tutorial")


STEPS: Final[dict[str, Callable[[Newcomer], str]]] = {
    "clone": clone,
    "demo": demo,
    "test": test,
    "tutorial": tutorial,
    "blocks": blocks,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and take the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], metavar="STEP", help=", ".join(STEPS))
    ordinary = ordinary_user().pw_name
    parser.add_argument("--user", default=ordinary, help=f"default: {ordinary}")
    parser.add_argument("--folder", type=Path, help="kept afterwards; default: a temporary one")
    parser.add_argument("--python", default=shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"))
    parser.add_argument("--dry-run", action="store_true", help="print the steps")
    given = parser.parse_args(arguments)
    names = given.steps or list(STEPS)
    if given.dry_run:
        for name in names:
            print(f"{name:<9} {STEPS[name].__doc__}")
        return 0
    with tempfile.TemporaryDirectory(prefix="llmtop-newcomer-", ignore_cleanup_errors=True) as temporary:
        who = Newcomer(
            pwd.getpwnam(given.user), (given.folder or Path(temporary)).absolute(), given.python or "python3"
        )
        who.folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            os.chown(who.folder, who.user.pw_uid, who.user.pw_gid)
        return take(who, names)


def take(who: Newcomer, names: Sequence[str]) -> int:
    """Take the steps and print each result; a step that fails does not end the others, but for the clone."""
    if failed := who.run(who.python, "-c", "import venv", where=who.folder):
        print(f"{who.user.pw_name} cannot run {who.python} with venv: pass --python or --user\n{failed}")
        return 3
    result = 0
    for name in names:
        began = time.monotonic()
        failed = STEPS[name](who)
        print(f"{name:<9} {time.monotonic() - began:7.1f} s  {'FAILED' if failed else 'passed'}", flush=True)
        if failed:
            print(failed, flush=True)
            result = 1
            if name == "clone":
                break
    return result


if __name__ == "__main__":
    sys.exit(main())

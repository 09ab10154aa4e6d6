"""Pythons that `llmtop run` cannot instrument, because an option makes them ignore their environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from llmtop.environment.python_facts import PYTHON
from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.launch.inject._llmtop_watch import ABI
from llmtop.naming import variable_names
from llmtop.redaction.secret_filter import words_without_secrets
from llmtop.system import procfs

OFF_REASON = f"{variable_names.OFF} is set"
"""Why nothing is instrumented then."""
_WITH_VALUE = "WX"
"""Options of the interpreter whose value may be the next word."""
_LAST = "cm"
"""Options after which all words are the program's."""
_UNSUPPORTED = {
    "I": "-I (isolated)",
    "E": "-E (no PYTHON variables)",
    "S": "-S (no site)",
}


_ELF = b"\x7fELF"
_LEAVE_THE_ENVIRONMENT = frozenset({"docker", "podman", "kubectl", "ssh", "sudo", "su", "nerdctl", "enroot"})
_START_OTHERS = frozenset({
    "bash", "busybox", "chrt", "dash", "dumb-init", "env", "fish", "flock", "gdb", "ionice", "ksh", "ltrace",
    "make", "mamba", "micromamba", "mpiexec", "mpiexec.hydra", "mpirun", "ncu", "nice", "nohup", "nsys",
    "numactl", "orterun", "parallel", "perf", "pixi", "prlimit", "prterun", "prun", "rr", "script", "setsid",
    "sh", "srun", "stdbuf", "strace", "systemd-run", "taskset", "time", "timeout", "tini", "unshare", "uv",
    "uvx", "valgrind", "watch", "xargs", "zsh",
})  # fmt: skip
"""Programs, not scripts, that start others; no note is printed for them."""


def unsupported_python_flag(command: Sequence[str]) -> str | None:
    """Return the option by which a Python with this command line ignores what `llmtop run` prepared; None
    without one."""
    if not command or not PYTHON.match(Path(command[0]).name):
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--") or word.startswith("--"):
            return None
        for place, letter in enumerate(word[1:], 2):
            if letter in _UNSUPPORTED:
                return _UNSUPPORTED[letter]
            if letter in _LAST:
                return None
            if letter in _WITH_VALUE:
                if place == len(word):
                    next(words, None)
                break
    return None


def flag_message(option: str) -> str:
    """Return the message for such a Python, with the next action."""
    return (
        f"python {option} ignores its environment, so no step of it is seen; start it without, or call "
        "llmtop.step() in the script"
    )


def unattachable_reason(command: Sequence[str], program: str) -> str | None:
    """Return why no process of a command will attach, as far as its program shows: a sentence, or None.

    Args:
        command: the words of the command line.
        program: the file that will be executed.
    """
    name = Path(command[0]).name
    if name in _LEAVE_THE_ENVIRONMENT:
        return f"{name} does not hand its environment on: put llmtop run behind it, before the Python that trains"
    if PYTHON.match(name) or name in _START_OTHERS:
        return None
    try:
        with open(program, "rb") as file:
            binary = file.read(len(_ELF)) == _ELF
    except OSError:
        return None
    return f"{name} is no Python program; only a Python that it starts can attach" if binary else None


def sentences(pids: Iterable[int]) -> list[str]:
    """Return a sentence for each of these processes that trains unattached: below `llmtop run`, with torch, but
    started with an option that ignores the environment."""
    return [said for pid in pids if (said := _unseen_message(pid))]


def _unseen_message(pid: int) -> str | None:
    try:
        words = procfs.words(pid)
        option = unsupported_python_flag(words)
        if (
            option is None
            or ABI not in procfs.environ(pid)
            or not any("libtorch" in name for name in procfs.mapped_files(pid))
        ):
            return None
    except (OSError, NotPossibleHere):
        return None  # gone, or not ours to read
    command = printable(" ".join(words_without_secrets(words)), 70)
    return f"pid {pid} ({command}) runs below llmtop run, but {flag_message(option)}"

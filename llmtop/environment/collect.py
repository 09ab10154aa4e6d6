"""All that is known of what a command runs in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmtop.environment import variables as listed
from llmtop.environment.machine import read_machine
from llmtop.environment.model import CommandEnvironment
from llmtop.environment.python_facts import python_facts
from llmtop.environment.repository import DiffKept, repository
from llmtop.errors import LlmtopError
from llmtop.format import encode_json
from llmtop.redaction.secret_filter import words_without_secrets
from llmtop.system import procfs


def collect_environment(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, *, diff: DiffKept, torch: bool = True
) -> CommandEnvironment:
    """Return the environment of a command. It takes some seconds where its Python has torch.

    Args:
        command: its words.
        variables: its environment.
        folder: in which it is started.
        diff: what to store of the difference to the git commit.
        torch: True: its Python imports torch and runs collect_env; False: only the installed packages are read.
    """
    return CommandEnvironment(
        collected_at=time.time(),
        command=words_without_secrets(command),
        folder=str(folder),
        machine=read_machine(),
        python=python_facts(command, variables, torch=torch),
        git=repository(folder, diff=diff),
        variables=listed.select_variables(variables),
        variables_left_out=listed.omitted_names(variables),
    )


def machine_environment() -> dict[str, Any]:
    """Return the facts that are known without a command, for the header of a recording."""
    found = CommandEnvironment(collected_at=time.time(), machine=read_machine())
    return as_dict(found)


def process_environment(pid: int) -> CommandEnvironment | None:
    """Return the environment of a running process. Its Python runs no code for it that takes noticeable CPU time.

    None where it has gone or belongs to another user.
    """
    try:
        variables = procfs.environ(pid)
        folder, words = Path(procfs.folder(pid)), procfs.words(pid)
    except (OSError, LlmtopError):
        return None
    return collect_environment(words, variables, folder, diff="hash", torch=False)


def as_dict(found: CommandEnvironment) -> dict[str, Any]:
    """Return what the header of a recording stores: environment.json without the text of the diff."""
    if found.git is not None and found.git.diff is not None:
        found = msgspec.structs.replace(found, git=msgspec.structs.replace(found.git, diff=None))
    told: dict[str, Any] = msgspec.to_builtins(found)
    return told


def to_json(found: CommandEnvironment) -> bytes:
    """Return the content of environment.json."""
    return msgspec.json.format(encode_json(found), indent=2) + b"\n"

"""All that is known of what a command runs in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from llmtop.environment import variables as listed
from llmtop.environment.machine import machine
from llmtop.environment.model import Surroundings
from llmtop.environment.python_facts import python_facts
from llmtop.environment.repository import repository
from llmtop.secret_filter import words_without_secrets


def surroundings(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, *, diff: bool, python: bool = True
) -> Surroundings:
    """What a command runs in; takes some seconds where its Python has torch.

    Args:
        command: its words.
        variables: its environment.
        folder: in which it is started.
        diff: whether to keep the difference to the git commit.
        python: whether to ask its Python what it has.
    """
    return Surroundings(
        collected_at=time.time(),
        command=words_without_secrets(command),
        folder=str(folder),
        machine=machine(),
        python=python_facts(command, variables) if python else None,
        git=repository(folder, diff=diff),
        variables=listed.kept(variables),
        variables_left_out=listed.left_out(variables),
    )


def to_json(found: Surroundings) -> bytes:
    """As environment.json has it."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"

"""Dumps of PyTorch's flight recorder: pickles through a process of its own, JSON directly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from llmtop.postmortem import unpickle_child
from llmtop.postmortem.evidence import CodeLine, FlightDump

_BATCH = 64
_WAIT_SECONDS = 20.0
"""For one file on a machine that is overloaded; the child's own limit is on CPU time."""


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A failed allocation of an allocator snapshot."""

    device: int
    bytes: int | None = None
    free: int | None = None
    frames: tuple[CodeLine, ...] = ()


class DumpAnswer(msgspec.Struct, kw_only=True):
    """Content that the child read from one file."""

    error: str = ""
    memory: tuple[FailedRequest, ...] | None = None
    """Requests of an allocator snapshot; None: the file is a flight recorder's dump."""


_answers = msgspec.json.Decoder(DumpAnswer)
_dumps = msgspec.json.Decoder(FlightDump)


def read_pickles(paths: Sequence[Path]) -> list[FlightDump | DumpAnswer]:
    """Return what each pickle holds: a dump, or an answer with an error or failed allocations."""
    found: list[FlightDump | DumpAnswer] = []
    while len(found) < len(paths):
        batch = paths[len(found) : len(found) + _BATCH]
        lines = _child_lines(batch)
        found += [_decode_line(line) for line in lines]
        if len(lines) < len(batch):  # the child ended by a limit
            found.append(DumpAnswer(error="it takes more time or memory than a dump needs"))
    return found


def _child_lines(paths: Sequence[Path]) -> list[bytes]:
    package = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    environment.pop("PYTHONSTARTUP", None)
    command = [sys.executable, "-S", "-m", unpickle_child.__name__, *map(str, map(Path.absolute, paths))]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as child:
        out = b""
        try:
            out, _ = child.communicate(timeout=_WAIT_SECONDS * len(paths))
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(ValueError, subprocess.TimeoutExpired):
                out, _ = child.communicate(timeout=5.0)
    return out.splitlines()


def _decode_line(line: bytes) -> FlightDump | DumpAnswer:
    try:
        answer = _answers.decode(line)
        return answer if answer.error or answer.memory is not None else _dumps.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return DumpAnswer(error="it is no dump of a flight recorder")


def dump_of_json(data: dict[str, Any]) -> FlightDump | None:
    """Return the dump that decoded JSON holds; None where it is something else."""
    if not isinstance(data.get("entries", data.get("pg_status")), list | dict):
        return None
    try:
        return msgspec.convert(unpickle_child.dump_of(data), FlightDump)
    except (ValueError, msgspec.MsgspecError, TypeError):
        return None

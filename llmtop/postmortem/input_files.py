"""Paths of a user -> all facts of all files below them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import printable, size
from llmtop.postmortem.evidence import Evidence, InputFile, Mark, Place, PythonError
from llmtop.postmortem.file_ranks import attempt_of_path, lone_numbers, rank_of_path
from llmtop.postmortem.flight_dumps import DumpAnswer, read_pickles
from llmtop.postmortem.json_files import add_dump, read_json
from llmtop.postmortem.log_lines import share_bytes
from llmtop.postmortem.log_reader import LogReader
from llmtop.postmortem.run_files import is_run_file, read_run_files
from llmtop.system.inputs import nesting_depth, open_input

MOST_INPUT_FILES = 20_000
_JSON_BYTES = 64 << 20
_JSON_DEPTH = 64
_HEAD = 4096


class NamedFile(NamedTuple):
    """A file with the name that is shown."""

    path: Path
    name: str
    """Relative to the folder that the user named."""
    kind: str
    """By its first bytes: "pickle", "json", "text", "empty" or "binary"."""


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Read all files of a dead or hung job.

    Args:
        paths: files and folders; of a folder all files below it.

    Raises:
        UnusableInput: a path is not there, or none of the files can be read.
    """
    evidence = Evidence()
    files = _last_attempts(find_files(paths, evidence), evidence)
    read_run_files([(one.path, one.name) for one in files if one.kind == "run"], evidence)
    _read_pickles([one for one in files if one.kind == "pickle"], evidence)
    texts = [one for one in files if one.kind == "text"]
    texts += [one for one in files if one.kind == "json" and not _read_json_file(one, evidence)]
    reader, share = LogReader(evidence), share_bytes(len(texts))
    lone = lone_numbers(PurePath(one.name) for one in texts)
    for one in texts:
        path = PurePath(one.name)
        rank = rank_of_path(path, is_lone=path in lone)
        try:
            rank, is_certain = reader.read(one.path, one.name, rank, share)
            evidence.files.append(InputFile(one.name, "log", rank, is_certain))
        except (UnusableInput, OSError) as error:
            evidence.problems.append(_problem(one, error))
    if all(one.kind == "empty" for one in evidence.files):
        first = (
            evidence.problems[0]
            if evidence.problems
            else "each file in it is empty"
            if evidence.files
            else "no file in it"
        )
        raise UnusableInput(
            f"{', '.join(map(str, paths[:3]))} cannot be used: {first}. Pass flight-recorder dumps, logs, error "
            "files or their folder"
        )
    return evidence


def find_files(paths: Sequence[Path], evidence: Evidence) -> list[NamedFile]:
    """Return the files that paths lead to.

    Raises:
        UnusableInput: a path is not there.
    """
    found: list[NamedFile] = []
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders.sort()
                wholes = [Path(folder) / name for name in sorted(names)]
                found += [NamedFile(one, str(one.relative_to(path)), "") for one in wholes if one.is_file()]
                if len(found) > MOST_INPUT_FILES:
                    break
        else:
            with open_input(path):
                found.append(NamedFile(path, path.name if len(paths) == 1 else str(path), ""))
    if len(found) > MOST_INPUT_FILES:
        evidence.problems.append(f"only the first {MOST_INPUT_FILES:,} files were read")
    return [one._replace(kind=_kind(one, evidence)) for one in found[:MOST_INPUT_FILES]]


def _kind(file: NamedFile, evidence: Evidence) -> str:
    """The kind of a file by its first bytes."""
    try:
        with open_input(file.path) as opened:
            head = opened.read(_HEAD)
    except (UnusableInput, OSError) as error:
        evidence.problems.append(_problem(file, error))
        return "unreadable"
    if not head:
        evidence.files.append(InputFile(file.name, "empty", rank_of_path(PurePath(file.name))))
        return "empty"
    kind = _kind_of_head(head, file.path.name)
    if kind == "packed":
        evidence.problems.append(f"{printable(file.name, 120)} is packed: unpack it with gunzip")
    elif kind == "binary":
        evidence.problems.append(f"{printable(file.name, 120)} is of no kind that is known")
    return kind


def _kind_of_head(head: bytes, name: str) -> str:
    if head[:2] == b"\x1f\x8b":
        return "run" if is_run_file(name) else "packed"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] in range(2, 6):
        return "pickle"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "binary" if b"\0" in head else "text"


def _problem(file: NamedFile, error: Exception) -> str:
    why = str(error) if isinstance(error, UnusableInput) else f"{file.name}: {getattr(error, 'strerror', error)}"
    return printable(why, 300)


def _last_attempts(files: list[NamedFile], evidence: Evidence) -> list[NamedFile]:
    """The files without those of earlier restarts of torchrun."""
    attempts = [attempt_of_path(PurePath(one.name)) for one in files]
    last = max((one for one in attempts if one is not None), default=None)
    kept = [one for one, attempt in zip(files, attempts, strict=True) if attempt in (None, last)]
    if len(kept) < len(files):
        evidence.problems.append(
            f"{len(files) - len(kept)} files of earlier restarts were not read: the last is attempt {last}"
        )
    return kept


def _read_pickles(files: list[NamedFile], evidence: Evidence) -> None:
    for file, answer in zip(files, read_pickles([one.path for one in files]), strict=True):
        rank = rank_of_path(PurePath(file.name))
        if not isinstance(answer, DumpAnswer):
            add_dump(answer, file.name, rank, evidence)
            evidence.files.append(InputFile(file.name, "flight recorder", answer.rank))
        elif answer.memory is None:
            evidence.problems.append(f"{printable(file.name, 120)} was not read: {printable(answer.error, 200)}")
        else:
            evidence.files.append(InputFile(file.name, "memory snapshot", rank))
            for failed in answer.memory:
                wanted = size(failed.bytes)
                text = f"an allocation of {wanted} failed on GPU {failed.device}, {size(failed.free)} free"
                error = PythonError(Place(file.name), "OutOfMemoryError", text, rank, frames=failed.frames)
                evidence.errors.append(error)
                gpu = str(failed.device)
                evidence.marks.append(Mark("device_oom", Place(file.name), text, rank, gpu=gpu))


def _read_json_file(file: NamedFile, evidence: Evidence) -> bool:
    """Read a JSON file; False where it is none, and a log may begin with a bracket."""
    data: Any
    try:
        with open_input(file.path) as opened:
            if os.fstat(opened.fileno()).st_size > _JSON_BYTES:
                return False
            raw = opened.read(_JSON_BYTES)
        data = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    except (UnusableInput, OSError) as error:
        evidence.problems.append(_problem(file, error))
        return True
    if nesting_depth(data, _JSON_DEPTH) > _JSON_DEPTH:
        evidence.problems.append(f"{printable(file.name, 120)} is JSON nested more than {_JSON_DEPTH} deep")
        return True
    rank = rank_of_path(PurePath(file.name))
    kind = read_json(data, file.name, rank, evidence)
    if not kind:
        return False
    evidence.files.append(InputFile(file.name, kind, rank))
    return True

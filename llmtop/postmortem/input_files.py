"""Paths of a user -> all facts of all files below them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import printable, size
from llmtop.postmortem.evidence import Evidence, InputFile, Mark, Place, PythonError
from llmtop.postmortem.file_ranks import attempt_of_path, lone_numbers, rank_of_path, without_rotation
from llmtop.postmortem.flight_dumps import DumpAnswer, read_pickles
from llmtop.postmortem.json_files import add_dump, read_json
from llmtop.postmortem.log_lines import share_bytes
from llmtop.postmortem.log_reader import LogReader
from llmtop.postmortem.packed_logs import PACKERS, is_archive, packer_of, unpack_log
from llmtop.postmortem.run_files import is_run_file, read_run_files
from llmtop.system.inputs import nesting_depth, open_input

MOST_INPUT_FILES = 8_192
_JSON_BYTES = 64 << 20
_JSON_DEPTH = 64
_HEAD = 4096


class NamedFile(NamedTuple):
    """A file with the name that is shown."""

    path: Path
    name: str
    """Relative to the folder that the user named."""
    kind: str
    """Kind by its first bytes: "pickle", "json", "text", "empty", "binary", or its compression."""
    content: bytes | None = None
    """All of it where it is short."""


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
    texts = [one for one in files if one.kind in ("text", *PACKERS)]
    texts += [one for one in files if one.kind == "json" and not _read_json_file(one, evidence)]
    reader, share = LogReader(evidence), share_bytes(len(texts))
    names = {one.name for one in texts}
    names_of_ranks = [PurePath(without_rotation(one.name, names)) for one in texts]
    lone = lone_numbers(names_of_ranks)
    for one, named in zip(texts, names_of_ranks, strict=True):
        _read_log(one, rank_of_path(named, is_lone=named in lone), reader, share, evidence)
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


def _read_log(file: NamedFile, rank: int | None, reader: LogReader, share: int, evidence: Evidence) -> None:
    try:
        if file.kind in PACKERS:
            unpacked = unpack_log(file.path, file.kind, share)
            if unpacked.note:
                evidence.problems.append(printable(f"{file.name}: {unpacked.note}", 300))
            rank, is_certain = reader.read_parts(unpacked.head, unpacked.tail, file.name, rank)
        elif file.content is not None:
            rank, is_certain = reader.read_parts(file.content, b"", file.name, rank)
        else:
            rank, is_certain = reader.read(file.path, file.name, rank, share)
        evidence.files.append(InputFile(file.name, "log", rank, is_certain))
    except (UnusableInput, OSError) as error:
        evidence.problems.append(_problem(file, error))


def find_files(paths: Sequence[Path], evidence: Evidence) -> list[NamedFile]:
    """Return the files that paths lead to.

    Raises:
        UnusableInput: a path is not there.
    """
    found: list[NamedFile] = []
    for path in paths:
        if path.is_dir():
            found += [NamedFile(one, str(one.relative_to(path)), "") for one in _files_below(path)]
        else:
            with open_input(path):
                found.append(NamedFile(path, path.name if len(paths) == 1 else str(path), ""))
    if len(found) > MOST_INPUT_FILES:
        evidence.problems.append(f"only the first {MOST_INPUT_FILES:,} files were read")
    return [_with_kind(one, evidence) for one in found[:MOST_INPUT_FILES]]


def _files_below(folder: Path) -> list[Path]:
    """Return the files below a folder by name, `MOST_INPUT_FILES` and one at most; links to folders are not
    followed."""
    found: list[Path] = []
    folders = [os.fspath(folder)]
    while folders and len(found) <= MOST_INPUT_FILES:
        inner: list[str] = []
        here: list[str] = []
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                elif _is_file(entry):
                    here.append(entry.path)
                    if len(here) + len(found) > MOST_INPUT_FILES:
                        break
        found += [Path(one) for one in sorted(here)]
        folders += sorted(inner, reverse=True)
    return found


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _with_kind(file: NamedFile, evidence: Evidence) -> NamedFile:
    """Return the file with its kind by its first bytes, and with its content where that is all."""
    try:
        with open_input(file.path) as opened:
            head = opened.read(_HEAD)
    except (UnusableInput, OSError) as error:
        evidence.problems.append(_problem(file, error))
        return file._replace(kind="unreadable")
    if not head:
        evidence.files.append(InputFile(file.name, "empty", rank_of_path(PurePath(file.name))))
        return file._replace(kind="empty")
    kind = _kind_of_head(head, file.path.name)
    if kind == "archive":
        evidence.problems.append(f"{printable(file.name, 120)} is an archive: unpack it with tar -xf")
    elif kind == "binary":
        evidence.problems.append(f"{printable(file.name, 120)} is of no kind that is known")
    return file._replace(kind=kind, content=head if len(head) < _HEAD and kind in ("text", "json") else None)


def _kind_of_head(head: bytes, name: str) -> str:
    if packer := packer_of(head):
        return "run" if is_run_file(name) else packer
    if is_archive(head):
        return "archive"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] in range(2, 6):
        return "pickle"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "binary" if b"\0" in head else "text"


def _problem(file: NamedFile, error: Exception) -> str:
    why = str(error) if isinstance(error, UnusableInput) else f"{file.name}: {getattr(error, 'strerror', error)}"
    return printable(why, 300)


def _last_attempts(files: list[NamedFile], evidence: Evidence) -> list[NamedFile]:
    """Return the files without those of earlier restarts of torchrun."""
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
    raw = file.content
    try:
        if raw is None:
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

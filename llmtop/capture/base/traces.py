"""Traces as other programs want them: in a folder of their own, named and labelled by rank.

Perfetto reads any. TensorBoard's profiler plugin takes files named ``*.pt.trace.json`` for traces and what stands
before that for the name of the worker. HTA takes every JSON file of a folder for a trace, and its rank from the
first ``"rank": N`` in it. PyTorch writes that (``distributedInfo``) only where the script has made a process
group.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from pathlib import Path

import msgspec

from llmtop.capture.base.job import CaptureJob, Target
from llmtop.errors import NotPossibleHere
from llmtop.format import encode_json
from llmtop.naming import variable_names
from llmtop.system import procfs
from llmtop.trace.files.file_kind import HEAD_BYTES, TRACES

ENDING = ".pt.trace.json"
_OBJECT = re.compile(rb"\s*\{\s*(?=\")")
_CHUNK = 1 << 22


def path_for(job: CaptureJob, target: Target, ending: str = ENDING) -> Path:
    """Return where the trace of one process is to be written; the folder is there.

    Args:
        job: the capture.
        target: the process.
        ending: of its name.

    Raises:
        NotPossibleHere: it cannot be made.
    """
    folder = job.folder / TRACES
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise NotPossibleHere(
            f"{folder} cannot be created: {error.strerror}; choose another folder with --out"
        ) from None
    rank, _ = rank_and_world_size(target)
    stem = target.file_stem if rank is None else f"rank{rank}"
    path = folder / f"{stem}{ending}"
    taken = [other for other in job.plan.targets if other is not target and rank_and_world_size(other)[0] == rank]
    return path.with_name(f"{stem}_pid{target.pid}{ending}") if rank is not None and taken else path


def rank_and_world_size(target: Target) -> tuple[int | None, int | None]:
    """Return rank and world size of a process, by its Hello, else by torchrun's variables."""
    if target.hello is not None:
        return target.rank, target.hello.world_size
    try:
        environ = procfs.environ(target.pid)
    except NotPossibleHere:
        return target.rank, None
    rank, world = (_number(environ.get(name)) for name in (variable_names.RANK, variable_names.WORLD_SIZE))
    return target.rank if target.rank is not None else rank, world


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else None


def write_label(path: Path, rank: int | None, world_size: int | None) -> None:
    """Write into a trace whose it is, where PyTorch has not; one that is no object is left as it is.

    Raises:
        NotPossibleHere: the disk is full, or the file has gone.
    """
    if rank is None:
        return
    made = path.with_name(f"{path.name}.labelled")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            before, _, _ = head.partition(b'"traceEvents"')
            start = _OBJECT.match(head)
            if start is None or b'"distributedInfo"' in before:
                return
            told = {"rank": rank} if world_size is None else {"rank": rank, "world_size": world_size}
            # HTA wants a blank before the number.
            words = msgspec.json.format(encode_json(told), indent=0)
            with made.open("wb") as labelled:
                labelled.write(b'{\n  "distributedInfo": ' + words + b",\n  " + head[start.end() :])
                shutil.copyfileobj(file, labelled, _CHUNK)
        os.replace(made, path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise NotPossibleHere(
            f"{path} is there, but its rank could not be written into it: {error.strerror}"
        ) from None


def write_gzipped_label(path: Path, pid: int, rank: int | None, world_size: int | None) -> None:
    """Write into a gzipped trace of jax.profiler whose it is: XLA does not say; one that is no object is left so.

    Raises:
        NotPossibleHere: the disk is full, or the file has gone.
    """
    made = path.with_name(f"{path.name}.labelled")
    told = {"pid": pid, "rank": rank, "world_size": world_size}
    try:
        with gzip.open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            start = _OBJECT.match(head)
            if start is None:
                return
            # As small as XLA makes it; the trace is of some steps.
            with gzip.open(made, "wb", compresslevel=6) as labelled:
                labelled.write(b'{"llmtop":' + encode_json(told) + b"," + head[start.end() :])
                shutil.copyfileobj(file, labelled, _CHUNK)
        os.replace(made, path)
    except (OSError, EOFError) as error:
        made.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is cut"
        raise NotPossibleHere(f"{path} is there, but whose it is could not be written into it: {why}") from None

"""Meaning of a stack: a collective that waits, or the thread's own activity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from llmtop.postmortem.evidence import CodeLine, StackDump, ThreadTrace

Activity = Literal["storage", "data", "stall"]

_COLLECTIVES = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce_scatter",
    "reduce_scatter_tensor", "broadcast", "broadcast_object_list", "reduce", "gather", "gather_object", "scatter",
    "scatter_object_list", "barrier", "monitored_barrier", "all_to_all", "all_to_all_single", "send", "recv",
    "isend", "irecv", "batch_isend_irecv", "all_reduce_coalesced", "all_gather_coalesced", "wait_tensor",
    "reduce_scatter_v", "all_gather_v",
})  # fmt: skip
_DISTRIBUTED = re.compile(r"torch/distributed/|torch\\distributed\\|/c10d|ProcessGroup|libnccl|libtorch")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|^<frozen|<string>|torch/|\.so(?:\.\d+)*$")
_WRAPPERS = frozenset(
    {"wrapper", "__call__", "_call_impl", "_wrapped_call_impl", "decorate_context", "_fn", "inner"}
)
_STORAGE_FUNCTION = re.compile(
    r"(?:^|_)(?:read|readinto|readline|readlines|open|fopen|stat|listdir|scandir|fsync|pread|mmap|read_bytes|"
    r"read_text|write|write_bytes|write_text)"
    r"(?:_|$)",
    re.IGNORECASE,
)
_STORAGE_FILE = re.compile(
    r"serialization\.py|pathlib(?:/|\.py)|shutil\.py|zipfile|tarfile\.py|fsspec|/_io|codecs\.py"
)
_DATA_FUNCTION = re.compile(
    r"__next__|__getitem__|__iter__|collate|fetch|next_batch|get_batch|load_batch|_next_data|_try_get_data|"
    r"(?:^|_)(?:load|loader|batch|batches|sample|samples|dataset|data|tokenize|decode|shard|prefetch)(?:_|$)",
    re.IGNORECASE,
)
_DATA_FILE = re.compile(r"torch/utils/data/|dataset|dataloader|data_?load|(?:^|/)data(?:/|\.py$)", re.IGNORECASE)
_LOCK_FUNCTION = re.compile(r"^(?:acquire|wait|join|__enter__|get|put|result|_wait_for_tstate_lock)$")
_LOCK_FILE = re.compile(r"threading\.py|queue\.py|concurrent/futures|multiprocessing/")
_NATIVE_CALL = re.compile(r"ctypes/|cffi/")
_NEAR = 12
"""Innermost frames that are looked at: wrappers and libraries lie between a call and its reason."""


def main_thread(stack: StackDump) -> ThreadTrace | None:
    """Return the main thread: as the file marks it, else the one that began in a module, else the last.

    faulthandler writes the oldest thread last.
    """
    marked = [one for one in stack.threads if one.is_main]
    began = [one for one in stack.threads if one.frames and one.frames[-1].function == "<module>"]
    found = marked or began or stack.threads[-1:]
    return found[-1] if found else None


def collective_of(frames: Sequence[CodeLine]) -> str | None:
    """Return the collective that a thread waits in; None where it waits in none."""
    for frame in frames[:_NEAR]:
        if _short(frame) in _COLLECTIVES and _DISTRIBUTED.search(frame.file):
            return frame.function
    return None


def own_line(frames: Iterable[CodeLine]) -> CodeLine | None:
    """Return the innermost frame that is of no library; else the innermost."""
    rows = [frame for frame in frames if frame.function not in _WRAPPERS]
    own = (frame for frame in rows if not _LIBRARY.search(frame.file))
    return next(own, rows[0] if rows else None)


def _short(frame: CodeLine) -> str:
    """The function without its class, which py-spy writes."""
    return frame.function.rpartition(".")[2]


def activity_of(frames: Sequence[CodeLine]) -> Activity:
    """Return what a thread that is in no collective does: "storage", "data" or "stall"."""
    near = [frame for frame in frames[:_NEAR] if frame.function not in _WRAPPERS]
    if not near:
        return "stall"
    first = near[0]
    is_loader = any(_DATA_FILE.search(frame.file) or _DATA_FUNCTION.search(_short(frame)) for frame in near[:8])
    if _LOCK_FILE.search(first.file) and _LOCK_FUNCTION.match(_short(first)):
        return "data" if any("torch/utils/data" in frame.file for frame in near) else "stall"
    if _NATIVE_CALL.search(first.file):
        return "stall"
    if _STORAGE_FUNCTION.search(_short(first)) or any(_STORAGE_FILE.search(frame.file) for frame in near[:3]):
        return "storage"
    return "data" if is_loader else "stall"

"""Meaning of a stack: a collective that waits, or the thread's own activity."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Literal

from llmtop.postmortem.error_kinds import is_data_library
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
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/lib/python3|^<frozen|<string>|\.so(?:[.\d]*)$|"
    r"(?:^|/)torch/(?:_|autograd|cuda|distributed|fx|jit|multiprocessing|nn|optim|utils)[^/]*(?:/|\.py$)|"
    r"(?:^|/)llmtop/(?:instrument|integrations|launch)/"
)
_SHORT_LIBRARY = re.compile(
    r"^(?:torch\w*|numpy|transformers|accelerate|deepspeed|datasets|lightning|pytorch_lightning|PIL|pandas|pyarrow|"
    r"fsspec|safetensors|huggingface_hub|webdataset|peft|trl|tqdm|triton|jax|concurrent|multiprocessing|asyncio|"
    r"json|logging|importlib|ctypes|http|urllib|email|xml|llmtop)/"
)
"""Files as py-spy writes them: relative to the folder of packages that they are in."""
_OWN = re.compile(r"(?:^|/)llmtop/(?:instrument|integrations|launch)/")
"""Files of llmtop within a training: it wraps collectives and loaders."""
_WRAPPERS = frozenset(
    {"wrapper", "__call__", "_call_impl", "_wrapped_call_impl", "decorate_context", "_fn", "inner"}
)
_NATIVE = re.compile(r"\.so(?:[.\d]*)$")
_NATIVE_FILE_CALL = re.compile(
    r"^_*(?:libc_|GI_+)*(?:p?readv?|open(?:at)?|f?stat(?:at|x)?|getdents|fsync|p?writev?)(?:64)?(?:_nocancel)?$"
)
"""Calls of the C library, which py-spy --native and stacks of the kernel show."""
_STORAGE_FILE = re.compile(
    r"(?:^|/)(?:pathlib(?:/\w+)?|shutil|zipfile(?:/\w+)?|tarfile|genericpath|glob|torch/serialization|"
    r"numpy/lib/\w*(?:npyio|format)\w*)\.py$|(?:^|/)(?:fsspec|safetensors)/|^<frozen (?:genericpath|os|posixpath)>"
)
_DATA_FUNCTION = "__next__"
"""Python's own name: the thread asks an iterator for its next item. A script's own names show nothing."""
_LOCK_FILE = re.compile(r"(?:^|/)(?:threading|queue)\.py|concurrent/futures|multiprocessing/")
_LOCK_FUNCTION = re.compile(r"^(?:acquire|wait|join|__enter__|get|put|result|_wait_for_tstate_lock)$")
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


def is_library(file: str) -> bool:
    """Return True for a file of Python, of a package that is installed, or of llmtop."""
    path = file.replace("\\", "/")
    if _LIBRARY.search(path) or _SHORT_LIBRARY.search(path):
        return True
    return "/" not in path and path.removesuffix(".py") in sys.stdlib_module_names


def own_line(frames: Iterable[CodeLine]) -> CodeLine | None:
    """Return the innermost frame that is of no library; else the innermost."""
    rows = [frame for frame in frames if frame.function not in _WRAPPERS]
    own = (frame for frame in rows if not is_library(frame.file))
    typed = (frame for frame in rows if frame.file == "<string>")  # python -c; also what libraries compile
    return next(own, None) or next(typed, rows[0] if rows else None)


def without_own(frames: Iterable[CodeLine]) -> tuple[CodeLine, ...]:
    """Return a stack without frames of llmtop, which wraps collectives and loaders of a training."""
    rows = tuple(frames)
    return tuple(frame for frame in rows if not _OWN.search(frame.file)) or rows


def _short(frame: CodeLine) -> str:
    """Return the function without its class, which py-spy writes."""
    return frame.function.rpartition(".")[2]


def activity_of(frames: Sequence[CodeLine]) -> Activity:
    """Return what a thread that is in no collective does: "storage", "data" or "stall".

    Names of the script's own functions and files decide nothing: `read_shard` may sleep.
    """
    near = [one for one in frames[:_NEAR] if one.function not in _WRAPPERS and not _OWN.search(one.file)]
    if not near:
        return "stall"
    first = near[0]
    is_loader = any(is_data_library(frame.file) or _short(frame) == _DATA_FUNCTION for frame in near)
    if _LOCK_FILE.search(first.file) and _LOCK_FUNCTION.match(_short(first)):
        return "data" if any(is_data_library(frame.file) for frame in near) else "stall"
    if _NATIVE_CALL.search(first.file):
        return "stall"
    if any(_reads_files(frame) for frame in takewhile(lambda one: is_library(one.file), near[:3])):
        return "storage"
    return "data" if is_loader else "stall"


def _reads_files(frame: CodeLine) -> bool:
    if _NATIVE.search(frame.file):
        return _NATIVE_FILE_CALL.match(frame.function) is not None
    return _STORAGE_FILE.search(frame.file.replace("\\", "/")) is not None

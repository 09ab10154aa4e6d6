"""Meaning of an error message: the rank's own fault, a lost peer, a collective that timed out, a mismatch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmtop.postmortem.evidence import ErrorKind

_MISMATCH = re.compile(
    r"preamble\.length|Detected mismatch between collectives|Collectives differ in the following|"
    r"(?:tensor|size|shape|dtype)s? .{0,40}(?:mismatch|must match).{0,80}(?:collective|rank)|"
    r"invalid tensor (?:size|type) at",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ ?ms for|collective operation timeout|Watchdog caught|wait timeout after|"
    r"failed to pass monitoredBarrier|Socket Timeout|timed out after \d+ seconds? waiting for clients|"
    r"Application timeout caused pair closure|ran for \d+ milliseconds before timing out",
    re.IGNORECASE,
)
_PEER_LOST = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|remote process exited|"
    r"ncclRemoteError|communicator was aborted|recvValue failed|failed to recv, got|Connection was likely closed|"
    r"Connection refused|process group (?:was|has been) (?:aborted|shut)|remote peer|"
    r"Failed to (?:connect|send)|successfully reached monitoredBarrier|store (?:is )?(?:closed|unreachable)|"
    r"NCCL watchdog thread terminated|Some NCCL operations have failed",
    re.IGNORECASE,
)
_PEER_NAMES = ("DistNetworkError", "DistStoreError", "ConnectionResetError", "BrokenPipeError")
_LAUNCHER_NAMES = (
    "SignalException",
    "ChildFailedError",
    "KeyboardInterrupt",
    "SystemExit",
    "ProcessExitedException",
)

_OUT_OF_MEMORY = re.compile(
    r"out of memory|MemoryError|Cannot allocate memory|can't allocate memory|bad_alloc|OutOfMemoryError|"
    r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)
_GPU = re.compile(
    r"CUDA error|device-side assert|illegal memory access|uncorrectable ECC|unspecified launch failure|"
    r"CUBLAS_STATUS_|CUDNN_STATUS_|GPU is lost|fallen off the bus|HIP error|misaligned address|CUDA driver error",
    re.IGNORECASE,
)
_STORAGE = re.compile(
    r"\[Errno (?:5|28|30|107|112|116|121|122)\]|No space left on device|Input/output error|Stale file handle|"
    r"Transport endpoint is not connected|Read-only file system|Disk quota exceeded|PytorchStreamWriter failed|"
    r"PytorchStreamReader failed",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"NET/IB : .{0,60}(?:error|fail)|Network is unreachable|No route to host|Name or service not known|ibv_|"
    r"Temporary failure in name resolution|socketStartConnect|transport retry counter exceeded|link down",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"in DataLoader worker process|UnidentifiedImageError|UnicodeDecodeError|JSONDecodeError|"
    r"DataLoader worker .{0,40}(?:exited|killed)|truncated (?:file|image)|ParquetException|ArrowInvalid",
)
_DATA_FILE = re.compile(
    r"(?:^|/)torch/utils/data/|(?:(?:site|dist)-packages/|^)(?:datasets|webdataset|torchdata|streaming|litdata)/"
)
"""Libraries that load data. Names of a script's own files and folders show nothing: "/mnt/datasets/train.py"."""


def error_kind(name: str, message: str) -> ErrorKind:
    """Return what an exception or a message of a rank says about who failed."""
    short = name.rpartition(".")[2]
    if short in _LAUNCHER_NAMES:
        return "stopped_by_launcher"
    if _MISMATCH.search(message):
        return "mismatch"
    if _TIMED_OUT.search(message):
        return "timed_out"
    if short in _PEER_NAMES or _PEER_LOST.search(message):
        return "peer_lost"
    return "own"


def is_storage(text: str) -> bool:
    """Return True if a message is about a file system."""
    return _STORAGE.search(text) is not None


def is_network(text: str) -> bool:
    """Return True if a message is about a network device or route."""
    return _NETWORK.search(text) is not None


def is_gpu(text: str) -> bool:
    """Return True if a message is CUDA's about a failed GPU or kernel."""
    return _GPU.search(text) is not None and _OUT_OF_MEMORY.search(text) is None


def is_out_of_memory(text: str) -> bool:
    """Return True if a message is about memory of the host or of a GPU."""
    return _OUT_OF_MEMORY.search(text) is not None


def is_data(text: str, files: tuple[str, ...] = ()) -> bool:
    """Return True if an error is about input data.

    Args:
        text: the error's name and message.
        files: of its frames, innermost first.
    """
    return _DATA.search(text) is not None or any(map(is_data_library, files[:8]))


def is_data_library(file: str) -> bool:
    """Return True for a file of a library that loads data."""
    return _DATA_FILE.search(file.replace("\\", "/")) is not None

"""Classifies a stack of a loader's thread: decoding, tokenizing, collating, reading, waiting.

The deepest known frame decides: going outwards from the innermost frame, the first that belongs to a library of
the table, to a part of the standard library that does one thing, or to a line of the script that calls such a
library (`llmtop.loading.source` reads that), names the stack. A frame of C has no line of Python: there the line
that calls it is all that is seen, so it is read. Functions of the script whose names state the work count as well
(tokenize_text, BPETokenizer.encode). Where none is known it is the script's own code.

Below a collate function, "collate" needs evidence of padding or stacking: torch's default_collate, or such a
function on the stack or in the innermost line. Other code there is "collate_fn".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, TypeAlias, cast

from llmtop.naming.phase_names import role_of
from llmtop.stacks.fold import waits_for_work
from llmtop.stacks.samples import Frame

Work: TypeAlias = Literal[
    "idle",
    "decode",
    "tokenize",
    "collate",
    "collate_fn",
    "file",
    "network",
    "lock",
    "gil",
    "sleep",
    "transfer",
    "own",
    "start",
]
"""Work of a loader's thread. "idle" waits for work. "file" reads a file, from storage or from memory.
"transfer" passes batches between processes. "collate" pads and stacks; "collate_fn" is other code of the script in
a collate function. "start" is what a worker does before its first batch: worker_init_fn, imports, unpickling the
dataset. "own" is code that no table lists."""

_LIBRARIES: dict[str, Work] = {
    name: work
    for work, names in cast(
        "dict[Work, str]",
        {
            "decode": "PIL cv2 torchvision torchaudio torchcodec av decord soundfile librosa audioread imageio "
            "skimage turbojpeg simplejpeg jpeg4py pydicom rawpy tifffile albumentations kornia imgaug",
            "tokenize": "tokenizers transformers sentencepiece tiktoken youtokentome fastBPE spacy nltk "
            "sacremoses",
            "network": "requests urllib3 httpx httpcore aiohttp s3fs fsspec gcsfs adlfs boto3 botocore s3transfer "
            "aiobotocore smart_open minio huggingface_hub paramiko redis pymongo psycopg2 s3torchconnector "
            "obstore",
            "lock": "filelock fasteners portalocker",
        },
    ).items()
    for name in names.split()
}
"""Work by the name of the package. numpy, scipy and torch do anything, so they show nothing."""
_STANDARD: dict[str, Work] = {
    "gzip.py": "decode",
    "bz2.py": "decode",
    "lzma.py": "decode",
    "_compression.py": "decode",
    "tarfile.py": "file",
    "zipfile.py": "file",
    "socket.py": "network",
    "ssl.py": "network",
    "ftplib.py": "network",
}
_SAYS_NETWORK = re.compile(r"/(?:http|urllib)/[^/]+\.py$")
_LOCKS = {
    "synchronize.py": {"acquire", "__enter__", "wait"},
    "threading.py": {"acquire"},
    "managers.py": {"acquire", "__enter__"},
}
_CALLS: dict[str, Work] = {
    name: work
    for work, names in cast(
        "dict[Work, str]",
        {
            "file": "open io.open os.read os.pread os.preadv os.readv mmap.mmap numpy.load numpy.memmap "
            "numpy.fromfile torch.load safetensors",
            "network": "socket ssl",
            "decode": "zlib gzip bz2 lzma zstandard lz4",
            "lock": "fcntl.flock fcntl.lockf multiprocessing.Lock multiprocessing.RLock threading.Lock "
            "threading.RLock",
            "sleep": "time.sleep",
        },
    ).items()
    for name in names.split()
}
"""Calls in lines of the script, by full name or by its first parts."""
TORCH_WORKER = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_COLLATE = ("torch/utils/data/_utils/collate.py", "torch/utils/data/_utils/pin_memory.py")
CHILD_PROCESS = "multiprocessing/process.py"
_BEGINS = (CHILD_PROCESS, "threading.py")
_SPAWNS = ("multiprocessing/spawn.py", "multiprocessing/forkserver.py")
TORCH_LOADER = "torch/utils/data/dataloader.py"
_TRANSFER = re.compile(r"/multiprocessing/(?:reductions?|reduction|resource_sharer|connection|queues|pool)\.py$")
_LOADING_PACKAGES = re.compile(
    r"/(?:datasets|webdataset|torchdata|streaming|litdata|wids|grain|ffcv|nvidia/dali)/"
)
_DECODES = re.compile(
    r"/(?:webdataset/autodecode|datasets/features/(?:image|audio|video)|litdata/streaming/serializers"
    r"|streaming/base/format/mds/encodings)\.py$"
)
"""Where packages that load turn bytes into samples, often by a library in C of which no frame is seen."""
_TOKENIZES = re.compile(r"tokeni[zs](?:e(?!d)|ation|ing)|(?:^|[_.])(?:bpe|wordpiece)(?:$|[_.])", re.IGNORECASE)
"""Names of functions and classes whose work is to make tokens of texts. `encode` alone is not one, and a
TokenizedDataset has its tokens already."""
_STACKS = re.compile(
    r"(?:^|_)(?:pad|padding|stack|[vhd]stack|concat|concatenate|cat|collate_tensors)(?:$|_)|default_collate"
)
"""Names of functions that bring samples to one size or put them together."""
_MAKES_TENSOR = re.compile(
    r"(?:torch|numpy)\.(?:tensor|as_tensor|from_numpy|array|asarray|zeros|full|empty|ones)(?:$|_like$)"
)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)/")
_ITERATES = {"__getitem__", "__getitems__", "__next__", "__iter__", "<listcomp>", "<genexpr>"}

Calls: TypeAlias = Callable[[Frame], "tuple[str, ...]"]
"""Return the calls in a frame's line, by full names as far as the file has them; () where it cannot be read."""
IsGenerator: TypeAlias = Callable[[Frame], bool]


@dataclass(frozen=True)
class StackActivity:
    """Work that one sampled stack shows."""

    work: Work
    library: str = ""
    """Library that decided; of "own" work the package it was seen in, which does not show its kind. "" where it
    was no library's."""
    place: str = ""
    """The innermost line of the script: "__getitem__ (data.py:12)"."""


def function(frame: Frame) -> str:
    """Its name without its class."""
    return frame.name.rpartition(".")[2]


def loading_frame(frames: Sequence[Frame], is_generator: IsGenerator) -> int | None:
    """Return the first frame on a stack of the training's own thread that prepares or awaits a batch; None without
    one.

    Args:
        frames: outermost first.
        is_generator: whether the function of a frame has a yield.
    """
    for index, frame in enumerate(frames):
        name = function(frame)
        if frame.file.endswith(TORCH_LOADER):
            if "_next" in name or name.startswith(("_try_get", "_get_data")) or "__init__" in name:
                return index
        elif frame.own:
            if name in ("__next__", "__iter__", "__getitem__") or role_of(name) == "input" or is_generator(frame):
                return index
        elif _LOADING_PACKAGES.search(frame.file) and name in _ITERATES:
            return index
    return None


def classify_stack(frames: Sequence[Frame], calls: Calls) -> StackActivity:
    """Classify a stack of a thread that prepares batches.

    Args:
        frames: outermost first; of the training's own thread from `loading_frame` on.
        calls: what the line of a frame calls.
    """
    inner = _of_worker(frames)
    place = next((frame.text for frame in reversed(inner) if frame.own), "")
    if not inner:
        return StackActivity("idle")
    python = [frame for frame in inner if not frame.native]
    if python and _starts_worker(frames, python):
        package = _PACKAGE.search(python[-1].file)
        return StackActivity("start", "" if package is None else package[1], place)
    fetched = next((index for index, frame in enumerate(python) if frame.file.endswith(_FETCH)), None)
    collating = fetched is not None and _collates(python[fetched:], calls)
    for index in range(len(python) - 1, -1, -1):
        found = _classify_frame(python[index], calls)
        if found is None:
            below_collate = collating and fetched is not None and index > fetched
            found = _by_name(python, index, calls, below_collate=below_collate)
        if found is not None:
            work = found[0]
            if work == "lock" and any(_of_queue(frame) for frame in python[max(index - 2, 0) : index]):
                work = "idle"  # it is the lock of a queue that has nothing for it
            return StackActivity(work, found[1], place)
    work = _by_position(python, collating, fetched is None)
    package = _PACKAGE.search(python[-1].file) if work == "own" and python else None
    return StackActivity(work, "" if package is None else package[1], place)


def _starts_worker(frames: Sequence[Frame], python: Sequence[Frame]) -> bool:
    """Return True if a worker has not asked for its first batch yet.

    Args:
        frames: of the whole stack, outermost first.
        python: those of its own, below a DataLoader's loop where it is in one.
    """
    if not any(frame.file.endswith(TORCH_WORKER) for frame in frames):
        return any(frame.file.endswith(_SPAWNS) for frame in frames) and not any(
            frame.file.endswith(CHILD_PROCESS) and function(frame) == "run" for frame in frames
        )
    fetch = next((frame for frame in python if frame.file.endswith(_FETCH)), None)
    if fetch is not None:
        return function(fetch) == "__init__"  # iter(dataset)
    # Between batches the loop itself calls queues and its own module only.
    return python[0].own or (_PACKAGE.search(python[0].file) is not None and "/torch/" not in python[0].file)


def _by_position(python: Sequence[Frame], collating: bool, starts: bool) -> Work:
    """Classify a stack of which no single frame is known."""
    if any(frame.file.endswith(_COLLATE) for frame in python):
        return "collate"
    if collating:
        return "collate_fn" if any(frame.own for frame in python) else "collate"
    if waits_for_work(tuple(python)):
        return "idle"
    if python and _TRANSFER.search(python[-1].file):
        return "transfer"
    if starts and any(frame.file.endswith(TORCH_LOADER) and "__init__" in frame.name for frame in python):
        return "start"
    return "own"


def _of_queue(frame: Frame) -> bool:
    return PurePath(frame.file).name in ("queue.py", "queues.py", "pool.py") and not frame.own


def _of_worker(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the process's own: a fork has its parent's frames too.

    Of a DataLoader's worker what is below its loop; nothing while that waits for an index.
    """
    at = next((index for index, frame in enumerate(frames) if frame.file.endswith(TORCH_WORKER)), None)
    if at is None:
        begun = [
            index
            for index, frame in enumerate(frames)
            if frame.file.endswith(_BEGINS) and function(frame) in ("run", "_bootstrap")
        ]
        return list(frames[begun[-1] + 1 :] if begun else frames)
    inner = list(frames[at + 1 :])
    if any(frame.file.endswith(_FETCH) for frame in inner):
        return inner
    return [] if any(function(frame) in ("get", "poll", "wait") for frame in inner) else inner


def _collates(below: Sequence[Frame], calls: Calls) -> bool:
    """Return True if what `fetch` called is the function that makes a batch of samples, whatever its name."""
    if len(below) < 2:
        return False
    names = calls(below[0])
    if names:
        return any("collate" in name for name in names)
    return "collate" in below[1].name.lower()


def _classify_frame(frame: Frame, calls: Calls) -> tuple[Work, str] | None:
    """Classify a stack by one of its frames; None: unknown."""
    if frame.own:
        return _of_line(frame, calls)
    name, file = function(frame), PurePath(frame.file).name
    package = _PACKAGE.search(frame.file)
    if package is not None:
        if _DECODES.search(frame.file):
            return "decode", package[1]
        work = _of_transformers(frame) if package[1] == "transformers" else _LIBRARIES.get(package[1])
        if package[1] == "fsspec" and file == "local.py":
            work = "file"
        return None if work is None else (work, package[1])
    if file in _STANDARD:
        return None if name == "accept" else (_STANDARD[file], file.removesuffix(".py"))
    if _SAYS_NETWORK.search(frame.file):
        return "network", "http"
    return ("lock", "") if name in _LOCKS.get(file, ()) else None


def _by_name(python: Sequence[Frame], index: int, calls: Calls, *, below_collate: bool) -> tuple[Work, str] | None:
    """Classify a stack by the name of a function; of the innermost frame also by the calls in its line.

    In the line of an outer frame the call that runs is the next frame, so its other calls are no evidence.
    """
    frame = python[index]
    called = calls(frame) if frame.own and index == len(python) - 1 else ()
    if any(_function_name(name) is not None for name in called):
        return None  # of libraries for several kinds of work: `_of_line` knows one of them
    stacks = below_collate and (
        _STACKS.search(function(frame)) is not None
        or any(_STACKS.search(name.rpartition(".")[2]) or _MAKES_TENSOR.match(name) for name in called)
    )
    names = [frame.name, *(name for name in called if not _STACKS.search(name.rpartition(".")[2]))]
    tokenizes = frame.own and any(_TOKENIZES.search(name) for name in names)
    if stacks == tokenizes:
        return None
    return ("collate" if stacks else "tokenize"), ""


def _of_transformers(frame: Frame) -> Work | None:
    file = PurePath(frame.file).name
    if "collator" in file or function(frame) in ("pad", "_pad"):
        return "collate"
    if "tokeniz" in file:
        return "tokenize"
    return "decode" if "_processing" in file or "feature_extraction" in file or "_transforms" in file else None


def _of_line(frame: Frame, calls: Calls) -> tuple[Work, str] | None:
    """Return the call of the line; None if it is in no table, or if there are several."""
    found = {name for called in calls(frame) if (name := _function_name(called)) is not None}
    return next(iter(found)) if len({work for work, _ in found}) == 1 else None


def _function_name(name: str) -> tuple[Work, str] | None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        known = _CALLS.get(".".join(parts[:length]))
        if known is not None:
            return known, parts[0]
    work = _LIBRARIES.get(parts[0])
    return None if work is None else (work, parts[0])

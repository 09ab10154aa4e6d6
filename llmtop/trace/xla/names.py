"""Meaning of XLA's names of copies and operations."""

from __future__ import annotations

import functools
import re

from llmtop.trace import model

_DIRECTIONS = {
    "MemcpyH2D": model.HOST_TO_DEVICE,
    "MemcpyD2H": model.DEVICE_TO_HOST,
    "MemcpyD2D": model.DEVICE_TO_DEVICE,
    "MemcpyP2P": model.PEER,
}
_MEMORY = re.compile(r"kind_(src|dst):([\w-]+)")
_SIZE = re.compile(r"(?:size|num_bytes):(\d{1,18})")
_MEMORIES = {text: number for number, text in model.MEMORIES.items()} | {"host": model.PAGEABLE}
_NUMBER = re.compile(r"(?:[._]\d+)+$")
_FUSION = re.compile(r"(?:^|_)fusion$|^fusion_|^(?:gemm|input|loop|transpose|triton_softmax)_fusion")
_KINDS_OF_FUSION = (
    ("gemm", "gemm fusion"),
    ("dot", "gemm fusion"),
    ("softmax", "softmax fusion"),
    ("reduce", "reduce fusion"),
    ("transpose", "transpose fusion"),
    ("concatenate", "concatenate fusion"),
    ("scatter", "scatter fusion"),
    ("loop_", "loop fusion"),
    ("input_", "input fusion"),
)
_LIBRARY = re.compile(r"^(?:custom-call|cublas|cudnn|__cublas|__cudnn|cub_|triton_kernel|te_)", re.I)


def parse_copy(name: str, details: str) -> tuple[int, tuple[int, int], int]:
    """Direction of a copy, kinds of its memories (keys of `model.MEMORIES`), and bytes; 0 bytes where not given.

    Args:
        name: of the event, as MemcpyH2D.
        details: as XLA writes them: "kind_src:pinned kind_dst:device size:4096 dest:0 async:1".
    """
    kinds = {which: _MEMORIES.get(text, model.MEMORY_UNKNOWN) for which, text in _MEMORY.findall(details)}
    unknown = model.MEMORY_UNKNOWN
    memories = (kinds.get("src", unknown), kinds.get("dst", unknown))
    return _DIRECTIONS.get(name, model.UNKNOWN), memories, parse_bytes(details)


def parse_bytes(details: str) -> int:
    """Return the bytes of a copy or memset; 0 where not given."""
    found = _SIZE.search(details)
    return int(found[1]) if found is not None else 0


@functools.lru_cache(maxsize=65536)
def operation_category(operation: str) -> str:
    """Return the kind of an operation from XLA's name, which usually comes from the opcode.

    Args:
        operation: as fusion.3, loop_add_fusion, dot.1, all-reduce-start, wrapped_tanh.
    """
    plain = _NUMBER.sub("", operation)
    if _LIBRARY.match(plain):
        return "library call"
    if _FUSION.search(plain):
        return next((kind for word, kind in _KINDS_OF_FUSION if word in plain), "fusion")
    return plain.removeprefix("wrapped_").removesuffix("-start").removesuffix("-done") or "other"

"""Readable names of kernels whose recorded name says nothing or too much: CUTLASS 3, Tensile, mangled, Triton.

The name that a tool filters by (`ncu --kernel-name`, `rocprof-compute --kernel`) is kept beside it.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from llmtop.naming.kernel_names import functor_of, is_carrier, matrix_type
from llmtop.naming.mangled import mangled_path, mangled_words

_READ: Final = 6000
"""Characters of a full name that are searched: the template of a CUTLASS 3 kernel is thousands long."""
_CASTS: Final = re.compile(r"\((?:unsigned )?(?:int|long|bool|short)\)")
"""Before literals of templates, as ncu and nsys write them: (int)128."""
_CUTLASS: Final = re.compile(r"\b(device_kernel|Kernel2?)<")
_CLASS: Final = re.compile(r"(?:\w+::)*(\w+)")
_WRAPPER: Final = re.compile(r"^(?:enable_\w+|GemmUniversalAdapter|const|typename|void)$")
_TILE: Final = re.compile(r"tuple<\s*(?:cute::)?C<(\d+)>,\s*(?:cute::)?C<(\d+)>,\s*(?:cute::)?C<(\d+)>")
_SHAPE: Final = re.compile(r"GemmShape<(\d+),\s*(\d+),\s*(\d+)>")
_SCHEDULE: Final = re.compile(r"\bKernel((?:Ptr|Tma|Cp)\w+)")
_TYPES: Final = (
    ("fp8", re.compile(r"float_e[45]m[23]_t|__nv_fp8")),
    ("fp4", re.compile(r"float_e2m1_t")),
    ("bf16", re.compile(r"bfloat16_t|__nv_bfloat16")),
    ("fp16", re.compile(r"\bhalf_t|__half")),
    ("tf32", re.compile(r"tfloat32_t")),
    ("int8", re.compile(r"\bint8_t|signed char")),
    ("fp32", re.compile(r"\bfloat\b")),
)
_TENSILE: Final = re.compile(r"^(Cijk_A(il|li)k_B(lj|jl)k_\w*?MT(\d+x\d+x\d+)(?:_MI\d+x\d+x\d+)?)")
_IGEMM: Final = re.compile(r"^(igemm_(fwd|bwd|wrw)_\w*?(nhwc|nchw)_(\w+?)_bx\w*?_bt(\d+x\d+x\d+))")
_TRITON: Final = re.compile(r"^triton_([a-z]+)_fused_(\w+)_(\d+)$")
_LONG: Final = 48
_SHOWN: Final = 24
"""Characters of a Triton kernel's fused operators that are shown where there are more."""


class KernelLabel(NamedTuple):
    """How a kernel is called."""

    name: str
    """Name in a report."""
    tool_name: str
    """Name for tools that filter kernels: a function's name, or the beginning of it."""
    functor: str = ""
    """Function that a template of PyTorch or CUTLASS computes."""
    pattern: str = ""
    """A regular expression over a demangled name that fits this kernel alone, where the function's name fits
    others too; empty elsewhere."""


@functools.lru_cache(maxsize=8192)
def label_of(short: str, full: str) -> KernelLabel:
    """Return what a kernel is called.

    Args:
        short: without template arguments and parameters.
        full: as recorded.
    """
    functor = functor_of(full)
    if functor:
        return KernelLabel(f"{short}: {functor}", short, functor)
    return (
        _cutlass(short, full) or _amd(full) or _mangled_label(full) or _triton(short) or KernelLabel(short, short)
    )


def _cutlass(short: str, full: str) -> KernelLabel | None:
    """Name a CUTLASS kernel by its template's argument: class, tile, type and schedule."""
    if short not in ("device_kernel", "Kernel", "Kernel2"):
        return None
    text = _CASTS.sub("", full[:_READ])
    found = _CUTLASS.search(text)
    if found is None:
        return None
    inside = text[found.end() :]
    words = (match[1] for match in _CLASS.finditer(inside))
    name = next((word for word in words if not _WRAPPER.match(word)), "")
    if not name:
        return None
    pattern = rf"{re.escape(name)}\b"
    if name.startswith("cutlass_"):  # profiled names hold all of it
        return KernelLabel(name, short, name, pattern)
    parts = [name]
    tile, own = _tile(inside)
    if tile:
        parts.append(tile)
        pattern += f".*{own}"
    dtype = next((kind for kind, like in _TYPES if like.search(inside)), None)
    parts += [dtype] if dtype else []
    schedule = _SCHEDULE.search(inside)
    parts += [schedule[1]] if schedule else []
    functor = " ".join(parts)
    return KernelLabel(functor, short, functor, pattern)


def _tile(text: str) -> tuple[str, str]:
    """Return the tile of a CUTLASS kernel, and a pattern of it as nsys, torch.profiler and ncu write it."""
    tiles = [match.groups() for match in _TILE.finditer(text)]
    if tiles:  # the first ones may be the shape of a cluster
        values = max(tiles, key=lambda sizes: [int(sizes[0]) * int(sizes[1]) * int(sizes[2])])
        each = [rf"(?:cute::)?C<(?:\(int\))?{value}>" for value in values]
        return "x".join(values), r",\s*".join(each)
    shape = _SHAPE.search(text)
    if shape is None:
        return "", ""
    each = [rf"(?:\(int\))?{value}" for value in shape.groups()]
    return "x".join(shape.groups()), rf"GemmShape<{', '.join(each)}>"


def _amd(full: str) -> KernelLabel | None:
    """hipBLASLt's and rocBLAS's products (Tensile), and MIOpen's implicit products."""
    tensile = _TENSILE.match(full)
    if tensile:
        layout = ("N" if tensile[2] == "il" else "T") + ("N" if tensile[3] == "lj" else "T")
        dtype = matrix_type(full)
        return KernelLabel(" ".join(filter(None, ("Tensile GEMM", dtype, layout, tensile[4]))), tensile[1])
    igemm = _IGEMM.match(full)
    if igemm:
        return KernelLabel(f"igemm {igemm[2]} {igemm[3]} {igemm[4]} {igemm[5]}", igemm[1])
    return None


_GENERIC: Final = frozenset(
    {"kentry", "kernel", "device_kernel", "Kernel", "Kernel2", "kernel_entry", "reduce_kernel"}
    | {"multi_tensor_apply_kernel"}
)
_NAMESPACE: Final = re.compile(r"^(?:_GLOBAL_.*|at|c10|native|cutlass|ck|ck_tile|std|cuda|flash|detail)$")


def _mangled_label(full: str) -> KernelLabel | None:
    """Return a name that the profiler did not demangle: its path, and what a generic template computes."""
    path = mangled_path(full)
    if not path:
        return None
    name = "::".join(part for part in path if not part.startswith("_GLOBAL_"))
    if path[-1] not in _GENERIC and "elementwise_kernel" not in path[-1]:
        return KernelLabel(name, path[-1])
    words = mangled_words(full)[len(path) :]
    inner = next((word for word in words if not _NAMESPACE.match(word) and not is_carrier(word)), "")
    return KernelLabel(f"{name}: {inner}" if inner else name, path[-1], inner)


def _triton(short: str) -> KernelLabel | None:
    """Return a kernel of torch.compile's with the names of many operators: the first ones, and its number."""
    found = _TRITON.match(short)
    if found is None or len(short) <= _LONG:
        return None
    operators = found[2].strip("_")
    shown = operators[:_SHOWN].rpartition("_")[0] or operators[:_SHOWN]
    return KernelLabel(f"triton_{found[1]}_fused_{shown}_…_{found[3]}", short)

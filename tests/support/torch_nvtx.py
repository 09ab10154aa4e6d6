"""NVTX for a PyTorch without CUDA: its own profiler then marks operators as it does with CUDA.

All of it is PyTorch's (which thread, which text, when) but the two calls of NVTX at its end, which are in the part
that needs CUDA. That part is an object of C++ whose virtual functions PyTorch calls; here they are functions of
Python behind a table of pointers laid out as g++ does it (torch/csrc/profiler/stubs/base.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

_kept: list[Any] = []
_REGISTER = "_ZN5torch8profiler4impl19registerCUDAMethodsEPNS1_13ProfilerStubsE"


def register(begin: Callable[[str], object] | None = None, end: Callable[[], object] | None = None) -> None:
    """Have PyTorch call NVTX, or these functions; only in a process of a test's own."""
    import nvtx
    import torch

    begins, ends = begin or nvtx.push_range, end or nvtx.pop_range

    this = ctypes.c_void_p
    nothing = ctypes.CFUNCTYPE(None, this)
    push = ctypes.CFUNCTYPE(None, this, ctypes.c_char_p)

    def never(_: object) -> None:
        raise AssertionError("PyTorch's NVTX profiler records no events")

    def begun(_: object, name: bytes) -> None:
        begins(name.decode())

    def ended(_: object) -> None:
        ends()

    # record, elapsed, mark, rangePush, rangePop, enabled, onEachDevice, synchronize, and two destructors
    functions = [nothing(never)] * 3
    functions += [push(begun), nothing(ended), ctypes.CFUNCTYPE(ctypes.c_bool, this)(lambda _: True)]
    functions += [nothing(never)] * 4
    table = (this * len(functions))(*(ctypes.cast(function, this).value for function in functions))
    stubs = (this * 1)(ctypes.addressof(table))
    _kept.extend((functions, table, stubs))
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library[_REGISTER](ctypes.byref(stubs))

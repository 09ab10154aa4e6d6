"""Names of Python frames as torch.profiler writes them: "train.py(12): step"."""

from __future__ import annotations

import re

_LIBRARIES = re.compile(
    r"^(torch/|<|nn\.Module|threading\.py|contextlib\.py|functools\.py|runpy\.py|typing\.py|weakref\.py|inspect\.py"
    r"|triton/|accelerate/hooks\.py|accelerate/utils/operations\.py|importlib)|/lib/python3[^/]*/"
)


def frame_name(file: str, line: int, function: str) -> str:
    """Return the name of a frame, as torch.profiler writes it."""
    return f"{file}({line}): {function}"


def is_own_frame(name: str) -> bool:
    """Return True for a frame of a Python file that is neither the interpreter's nor a library's."""
    return ".py(" in name and not _LIBRARIES.search(name)

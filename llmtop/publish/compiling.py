"""torch.compile and this package: its functions are not to be traced into a compiled function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_compiling() -> Callable[[], bool] | None:
    """torch's own question for code that may be traced, which torch.compile answers with yes while tracing.

    None without torch. Of torch's several forms this one costs least where nothing is traced: it only returns
    False.
    """
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    found: Callable[[], bool] | None = getattr(compiler, "is_dynamo_compiling", None)
    return found

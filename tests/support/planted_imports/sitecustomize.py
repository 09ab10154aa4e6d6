"""Makes one import slow, as a network file system may: on PYTHONPATH, Python imports this at its start.

`SLOW_MODULE` is slow in threads other than the main one: `SLOW_SECONDS`, before its file is looked for or, with
`SLOW_WHERE` "within", after half of its statements. When that begins, the file `SLOW_BEGUN` appears.
"""

from __future__ import annotations

import _thread
import ast
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_main = _thread.get_ident()


def sleep_once() -> None:
    """Report that the import has come here, and be slow."""
    os.close(os.open(os.environ["SLOW_BEGUN"], os.O_CREAT | os.O_WRONLY, 0o600))
    time.sleep(float(os.environ["SLOW_SECONDS"]))


class SlowFinder:
    """Finds `SLOW_MODULE`, and that slowly."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find it as Python does (`MetaPathFinder.find_spec`)."""
        if name != os.environ["SLOW_MODULE"] or _thread.get_ident() == _main:
            return None
        if os.environ["SLOW_WHERE"] == "before":
            sleep_once()
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _execute_slowly  # type: ignore[method-assign]
        return spec


def _execute_slowly(module: ModuleType) -> None:
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read(), module.__file__)
    slow = ast.parse("__import__('sitecustomize').sleep_once()").body
    # Not before `from __future__`, which must come first.
    half = max(2, len(tree.body) // 2)
    tree.body[half:half] = slow
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), module.__dict__)


if "SLOW_MODULE" in os.environ:
    sys.meta_path.insert(0, SlowFinder())

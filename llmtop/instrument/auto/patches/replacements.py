"""Functions of torch's and of libraries that are replaced for a while, and given back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

MISSING: Any = object()


class Replaced:
    """Replacements of functions of classes and modules."""

    def __init__(self) -> None:
        self._given: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace the function that `owner` has under that name, its own or inherited."""
        own = vars(owner).get(name, MISSING)
        setattr(owner, name, function)
        self._given.append((owner, name, own, function))

    def restore(self) -> None:
        """Restore all; what other code has put there since stays."""
        while self._given:
            owner, name, own, function = self._given.pop()
            if vars(owner).get(name) is not function:
                continue
            if own is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class AfterImport:
    """Calls something once a module has been executed, and is gone; until then it costs a comparison an import."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        """Wait for the import of the module `name`; `then` is called at once where that is over."""
        self._name, self._then = name, then
        self._asking_others = False
        if name in sys.modules:
            then()
        else:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Wait no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module as others do (`MetaPathFinder.find_spec`). Looking without importing changes nothing."""
        if name != self._name or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking_others = False
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_call(module: Any) -> None:
            del loader.exec_module  # the loader that the module keeps is the one that Python made
            self.forget()
            execute(module)
            self._then()

        loader.exec_module = execute_and_call

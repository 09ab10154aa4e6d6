"""Functions of torch's and of libraries that are replaced for a while, and given back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
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
    """Calls something once a module has been executed, for each of some modules; until then it costs a look-up an
    import."""

    def __init__(self, names: Iterable[str], then: Callable[[str], None]) -> None:
        """Wait for the import of the modules.

        Args:
            names: of the modules.
            then: called with the name, at once where the import is over.
        """
        loaded = [name for name in names if name in sys.modules]
        self._left, self._then = set(names).difference(loaded), then
        self._asked: set[str] = set()
        """Names that the other finders are asked for now."""
        if self._left:
            sys.meta_path.insert(0, self)
        for name in loaded:
            then(name)

    def forget(self) -> None:
        """Wait no more."""
        self._left.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module as others do (`MetaPathFinder.find_spec`). Looking without importing changes nothing."""
        if name not in self._left or name in self._asked:
            return None
        self._asked.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asked.discard(name)
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._call_after(name, spec.loader)
        return spec

    def _call_after(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_call(module: Any) -> None:
            del loader.exec_module  # the loader that the module keeps is the one that Python made
            self._left.discard(name)
            if not self._left:
                self.forget()
            execute(module)
            self._then(name)

        loader.exec_module = execute_and_call

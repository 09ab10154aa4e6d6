"""Finding what a process trains: its modules, a parameter, its optimizers.

Nothing of the script's is called or asked: modules are read by their own dictionaries, so that whatever a class
makes of `parameters`, of attributes or of tensors is never run.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

MAX_NODES = 10_000
"""Nodes of an autograd graph that are visited."""
MAX_UNSEEN_CLASSES = 512
"""Most classes tried for modules hidden from the garbage collector."""
_plain: Any = torch._C._disabled_torch_function_impl
own_dict = object.__getattribute__


class HeldParameter:
    """A parameter identified by its module and name: keeps neither alive.

    torch swaps no tensor to which there is a weak reference: `Module.to` of a module with parameters of a class
    like DTensor would raise.
    """

    __slots__ = ("_module", "_name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = weakref.ref(module)
        self._name = name

    def __call__(self) -> Any:
        """Return the module's present value under that name; None if there is none."""
        module = self._module()
        held: Any = None if module is None else own_dict(module, "__dict__").get("_parameters")
        value = held.get(self._name) if issubclass(type(held), dict) else None
        return value if issubclass(type(value), torch.Tensor) else None


class FoundModules(NamedTuple):
    """Result of a scan of all objects of the process."""

    roots: list[nn.Module]
    optimizers: list[Any]


def find_modules(*, trained: bool = True) -> FoundModules:
    """Modules that no other module holds and that have something to train, and all optimizers.

    Args:
        trained: False: also modules whose parameters are all frozen.

    Takes some 0.1 s for a million objects in the process. Objects that gc.freeze() has hidden are not found.
    """
    modules: list[nn.Module] = []
    optimizers: list[Any] = []
    for thing in gc.get_objects():
        kind = type(thing)  # rather than isinstance(): a lazy proxy would be made to load what it stands for
        if issubclass(kind, nn.Module):
            modules.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(thing)
    held = {id(child) for module in modules for child in held_by(module, "_modules")}
    return FoundModules(
        [module for module in modules if id(module) not in held and _is_wanted(module, trained)], optimizers
    )


def children(parents: Iterable[nn.Module], *, trained: bool = True) -> list[nn.Module]:
    """Return the modules one level below that have something to train; containers are replaced by their modules.

    Args:
        trained: False: also modules whose parameters are all frozen.
    """
    found: dict[int, nn.Module] = {}
    waiting = list(parents)
    seen = {id(parent) for parent in waiting}
    for parent in waiting:
        for child in held_by(parent, "_modules"):
            if id(child) not in seen:
                seen.add(id(child))
                if issubclass(type(child), (nn.ModuleList, nn.ModuleDict)):
                    waiting.append(child)
                elif _is_wanted(child, trained):
                    found[id(child)] = child
    return list(found.values())


def _is_wanted(module: nn.Module, trained: bool) -> bool:
    if not trained and issubclass(type(module), torch.jit.ScriptModule):
        return True  # what it holds is not in Python
    return next(_parameters(module) if not trained else _trained_parameters(module), None) is not None


def watchable(modules: Iterable[nn.Module]) -> HeldParameter | None:
    """Return a trained parameter that can be asked for its version without running code of its class; None for
    none."""
    for module in modules:
        for one in _module_tree(module):
            for name, parameter in named_by(one, "_parameters"):
                if _is_plain(parameter) and _requires_grad(parameter):
                    return HeldParameter(one, name)
    return None


def unseen_classes() -> list[type[nn.Module]]:
    """Classes of modules that a script may have made instances of, where those themselves are hidden.

    Its own, and those of torch that are often outermost; of a library's many classes none.
    """
    found: dict[type[nn.Module], None] = {nn.Sequential: None, nn.parallel.DistributedDataParallel: None}
    waiting: list[type[nn.Module]] = [nn.Module]
    for kind in waiting:
        waiting += [below for below in type.__subclasses__(kind) if below not in found]
        if not kind.__module__.startswith("torch."):
            found[kind] = None
    return list(found) if len(found) <= MAX_UNSEEN_CLASSES else []


def _trained_parameters(module: nn.Module) -> Iterator[Any]:
    return (parameter for parameter in _parameters(module) if _requires_grad(parameter))


def _parameters(module: nn.Module) -> Iterator[Any]:
    for one in _module_tree(module):
        yield from held_by(one, "_parameters")


def _module_tree(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the module and all below it, each once."""
    waiting, seen = [module], {id(module)}
    for one in waiting:
        yield one
        for child in held_by(one, "_modules"):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def held_by(module: nn.Module, name: str) -> list[Any]:
    """Return the values of its `_parameters` or `_modules`; none where it has not got what torch puts there."""
    return [value for _, value in named_by(module, name)]


def named_by(module: nn.Module, name: str) -> list[tuple[str, Any]]:
    """Return the same with the name that each is held under."""
    held = own_dict(module, "__dict__").get(name)
    values = held.items() if issubclass(type(held), dict) else ()
    wanted = torch.Tensor if name == "_parameters" else nn.Module
    return [(key, value) for key, value in values if issubclass(type(value), wanted)]


def _requires_grad(parameter: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return bool(parameter.requires_grad)


def _is_plain(parameter: Any) -> bool:
    return type(parameter).__torch_function__ is _plain

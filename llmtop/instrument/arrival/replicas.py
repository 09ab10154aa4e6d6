"""Which module of this process trains together with other ranks, with which of them, and where that shows.

Only ranks that do the same work can be compared: those of one DistributedDataParallel's process group, or of the
mesh over which fully_shard has split parameters. Where a training does it otherwise (stages of a pipeline, an
all-reduce by hand) nothing is known, and nothing is reported.

Nothing of the script's is called: modules are read by their own dictionaries, as in `auto.search`.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from llmtop.instrument.pytorch import search

MOST_MODULES = 20_000
MOST_CANDIDATES = 4
"""Parameters at either end of a module that are tried for the gradient that is ready first or last."""


class Replica:
    """Parts of this process that are trained together with other ranks."""

    def __init__(self, module: Any, group: str, candidates: list[search.HeldParameter], gathers: bool) -> None:
        """Keep weak references alone, so that the script's module can be freed.

        Args:
            module: that is trained together with other ranks.
            group: equal in all ranks of the job that can be compared with each other, and in no others.
            candidates: parameters whose gradient may be ready first or last, in the module's order.
            gathers: True for FSDP: parameters are gathered within the step, and each gather waits for the other
                ranks.
        """
        self._module = weakref.ref(module)
        self._candidates = candidates
        self.group = group
        """The same in all ranks that can be compared with each other, and in no others of the job."""
        self.gathers = gathers
        """True if it gathers its parameters from the others within the step, and so waits for them everywhere."""

    @property
    def is_there(self) -> bool:
        """Return True if the script still holds it."""
        return self._module() is not None

    def candidates(self) -> list[Any]:
        """Parameters of which one's gradient is likely to be ready first, and one's last; none where hooks on
        gradients do not show when a rank arrives, and None in the place of one that can have no hook now."""
        found = [one() for one in self._candidates]
        return [parameter if _takes_a_hook(parameter) else None for parameter in found]


def find(roots: Iterable[Any]) -> Replica | None:
    """Return the first module in these trees that trains together with other ranks; None without one."""
    for module in _modules(roots):
        names = {kind.__name__ for kind in type(module).__mro__ if str(kind.__module__).startswith("torch.")}
        if "DistributedDataParallel" in names:
            ranks = _ranks_of(search.own_dict(module, "__dict__").get("process_group"))
            return _replica(module, ranks, _ends([*_plain_parameters(module)]), gathers=False)
        if "FSDPModule" in names:
            return _replica(module, _ranks_of_mesh(module), [], gathers=True)
        if "FullyShardedDataParallel" in names:
            ranks = _ranks_of(search.own_dict(module, "__dict__").get("process_group"))
            return _replica(module, ranks, [], gathers=True)
    return None


def mesh_roles(roots: Iterable[Any]) -> dict[str, int]:
    """Return this rank's coordinates in the named mesh of the first DTensor parameter; empty if there is none."""
    for one in _modules(roots):
        for parameter in search.held_by(one, "_parameters"):
            mesh = getattr(getattr(parameter, "_spec", None), "mesh", None)
            if mesh is not None and type(parameter).__name__ == "DTensor":
                names = getattr(mesh, "_mesh_dim_names", None) or getattr(mesh, "mesh_dim_names", None) or ()
                return dict(zip(names, map(int, getattr(mesh, "_coordinate_on_dim", None) or ()), strict=False))
    return {}


def _replica(module: Any, ranks: list[int], candidates: list[Any], *, gathers: bool) -> Replica | None:
    if len(ranks) < 2:
        return None
    code = zlib.crc32(",".join(map(str, sorted(ranks))).encode())
    return Replica(module, f"{len(ranks)}-{code:08x}", candidates, gathers)


def _modules(roots: Iterable[Any]) -> Iterator[Any]:
    """These modules and all below them, each once, the outer ones first."""
    waiting = list(roots)
    seen = {id(module) for module in waiting}
    for module in waiting:
        yield module
        for child in search.held_by(module, "_modules"):
            if id(child) not in seen and len(seen) < MOST_MODULES:
                seen.add(id(child))
                waiting.append(child)


def _plain_parameters(module: Any) -> Iterator[search.HeldParameter]:
    """Yield the trained parameters in the order in which they were registered."""
    for one in _in_order(module, set()):
        for name, parameter in search.named_by(one, "_parameters"):
            if _takes_a_hook(parameter):
                yield search.HeldParameter(one, name)


def _takes_a_hook(parameter: Any) -> bool:
    """Return True if it is trained; those of other classes are left alone."""
    torch = sys.modules["torch"]
    if type(parameter) is not torch.nn.Parameter:
        return False
    with torch._C.DisableTorchFunction():
        return bool(parameter.requires_grad and parameter.is_leaf)


def _in_order(module: Any, seen: set[int]) -> Iterator[Any]:
    if id(module) in seen or len(seen) >= MOST_MODULES:
        return
    seen.add(id(module))
    yield module
    for child in search.held_by(module, "_modules"):
        yield from _in_order(child, seen)


def _ends(parameters: list[search.HeldParameter]) -> list[search.HeldParameter]:
    """Gradients are ready in about the reverse order of the parameters, so the first come last."""
    found = {id(one()): one for one in (*parameters[:MOST_CANDIDATES], *parameters[-MOST_CANDIDATES:])}
    return list(found.values())


def _ranks_of(process_group: Any) -> list[int]:
    """Return the global ranks of a process group."""
    dist: Any = sys.modules["torch.distributed"]
    return [] if process_group is None else [int(rank) for rank in dist.get_process_group_ranks(process_group)]


def _ranks_of_mesh(module: Any) -> list[int]:
    """Return the global ranks over which a module's parameters are split or copied."""
    native = sys.modules["torch"]._C
    for one in _modules([module]):
        for parameter in search.held_by(one, "_parameters"):
            mesh = getattr(getattr(parameter, "_spec", None), "mesh", None)
            if mesh is not None and type(parameter).__name__ == "DTensor":
                # A mesh makes a tensor of its ranks, which no mode of the script sees.
                with native.DisableTorchFunction(), native._DisableTorchDispatch():
                    return [int(rank) for rank in mesh.mesh.flatten().tolist()]
    return []

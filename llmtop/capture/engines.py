"""Table of all engines, the only place that lists them."""

from __future__ import annotations

from collections.abc import Iterable

from llmtop.capture.base.engine import Engine
from llmtop.capture.in_process.jax_profiler import JaxProfilerEngine
from llmtop.capture.in_process.memory import MemoryEngine
from llmtop.capture.in_process.torch_profiler import TorchProfilerEngine
from llmtop.capture.kineto.engine import KinetoEngine
from llmtop.capture.nsys.engine import NsysEngine
from llmtop.capture.perf.engine import PerfEngine
from llmtop.capture.py_spy.engine import PySpyEngine
from llmtop.capture.torch_xla.engine import TorchXlaEngine
from llmtop.errors import UnusableInput

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        NsysEngine(),
        TorchXlaEngine(),
        TorchProfilerEngine(),
        JaxProfilerEngine(),
        KinetoEngine(),
        PySpyEngine(),
        PerfEngine(),
        MemoryEngine(),
    )
}
"""Engines by name, best first."""


def engine_named(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        UnusableInput: there is none.
    """
    if name not in ENGINES:
        raise UnusableInput(f"there is no engine {name!r}; there are: {', '.join(ENGINES)}")
    return ENGINES[name]


def check_options(engine: Engine, names: Iterable[str]) -> None:
    """Refuse options that a capture with that engine cannot have.

    Raises:
        UnusableInput: it has no such option, or not like this.
        NotPossibleHere: this machine does not allow it.
    """
    names = list(names)
    own = {option.name for option in engine.options}
    for name in names:
        if name not in own:
            raise UnusableInput(_foreign_option_text(engine, name))
    engine.check_options(names)


def _foreign_option_text(engine: Engine, name: str) -> str:
    for other in ENGINES.values():
        if any(option.name == name for option in other.options):
            return f"{name} is an option of {other.name}, not of {engine.name}: add --engine {other.name}"
    return f"there is no option {name!r}: llmtop capture --option help lists them"

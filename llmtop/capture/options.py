"""What each engine can record beyond the usual, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

from llmtop.capture import capabilities
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Option

TORCH_PROFILER: tuple[Option, ...] = (
    Option("stacks", "the Python stack of each operator", "each operator becomes some 10 µs slower", False),
    Option("shapes", "the shapes of each operator's inputs", "each operator becomes some µs slower", False),
    Option("memory", "each allocation of the CPU's and CUDA's allocators", "a larger file", False),
)


def all_options() -> list[tuple[str, Option]]:
    """(engine, option), by engine."""
    return [("nsys", option) for option in nsys.OPTIONS] + [("torch.profiler", one) for one in TORCH_PROFILER]


def of(engine: str) -> list[Option]:
    """The options that a capture with that engine can have."""
    return [option for owner, option in all_options() if owner == engine and not option.at_launch]


def cost(engine: str, name: str) -> str:
    """What an option costs, in words."""
    return next((option.cost for option in of(engine) if option.name == name), "")


def check(engine: str, names: Iterable[str]) -> None:
    """Refuse what cannot be had.

    Raises:
        UnusableInput: the engine has no such option, or it belongs on the launch.
        NotPossibleHere: this machine does not allow it.
    """
    names = list(names)
    if {"pause", "no-pause"} <= set(names):
        raise UnusableInput("give --option pause or --option no-pause, not both")
    for name in names:
        owners = [(owner, option) for owner, option in all_options() if option.name == name]
        if not owners:
            raise UnusableInput(f"there is no option {name!r}: llmtop capture --option help lists them")
        mine = [option for owner, option in owners if owner == engine]
        if not mine:
            raise UnusableInput(
                f"{name} is an option of {owners[0][0]}, not of {engine}: add --engine {owners[0][0]}"
            )
        if mine[0].at_launch:
            raise UnusableInput(
                f"{name} must be asked for when the training starts: llmtop run --nsys --with {name} -- COMMAND"
            )
        refused = capabilities.option_refusal(name) if engine == "nsys" else None
        if refused:
            raise NotPossibleHere(f"{name}: {refused[0]}; to change that: {refused[1]}")

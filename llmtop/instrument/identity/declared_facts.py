"""Parses the arguments of attach() as far as possible: "7b" and 2500.0 are numbers, torch.bfloat16 is a dtype.

What cannot be understood is left out, with one warning in the training's log; the rest is kept.
"""

from __future__ import annotations

import math
import re

from llmtop.format import printable
from llmtop.instrument.guest import sanitize

MOST_STEPS = 10**15
MAX_DTYPE = 32
FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward 2, backward 4: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1."""

_NUMBER = re.compile(r"^\s*(?P<number>\d+(_\d+)*(\.\d*)?(e[+-]?\d{1,3})?)\s*(?P<unit>[kmbgt]?)\s*$", re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_DTYPES = {
    "bf16": ("bfloat16", "bf16-mixed", "bf16-true"),
    "fp16": ("float16", "half", "f16", "16", "16-mixed", "16-true"),
    "fp32": ("float32", "float", "single", "f32", "32", "32-true"),
    "tf32": ("tensorfloat32",),
    "fp8": ("float8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "e4m3", "e5m2"),
}
_DTYPE_OF = {alias: known for known, aliases in _DTYPES.items() for alias in (known, *aliases)}
_DTYPE_MODULES = ("torch", "numpy", "numpy.dtypes")


def steps(argument: str, value: object, least: int, otherwise: str) -> int | None:
    """Return a number of steps; None, and a warning, for what is none.

    Args:
        argument: of attach(), by name.
        value: what was passed.
        least: the smallest that makes sense.
        otherwise: what follows from not knowing it, for the warning.
    """
    number = _number(value)
    if number is not None and least <= number <= MOST_STEPS and number == int(number):
        return int(number)
    _refuse(argument, value, f"a whole number from {least} to 10^15", otherwise)
    return None


def amount(argument: str, value: object) -> float | None:
    """Return a count of parameters or operations; None, and a warning, for what is none."""
    number = _number(value)
    if number is not None and number > 0 and math.isfinite(number * FLOPS_PER_PARAMETER_AND_TOKEN):
        return number
    _refuse(argument, value, 'a number above 0, such as 7e9 or "7b"', "there is no MFU")
    return None


def dtype(value: object) -> str | None:
    """Return the name of a dtype; None, and a warning, for what is none. One that is not known is kept as it
    is."""
    text = None
    if isinstance(value, str):
        text = str.__str__(value)
    elif isinstance(value, type):
        text = value.__name__
    elif type(value).__module__ in _DTYPE_MODULES:
        text = str(value)
    if text is None or not text.strip():
        _refuse("dtype", value, 'a dtype, such as "bf16" or torch.bfloat16', "there is no MFU")
        return None
    plain = text.strip().lower().removeprefix("torch.").replace("_mixed", "-mixed")
    return _DTYPE_OF.get(plain) or printable(plain[:MAX_DTYPE])


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        number = sanitize.number(value)
        return number if number is not None and math.isfinite(number) else None
    match = _NUMBER.match(value[:64])
    return None if match is None else float(match["number"]) * _UNITS[match["unit"].lower()]


def _refuse(argument: str, value: object, wanted: str, otherwise: str) -> None:
    given = sanitize.describe(value)
    sanitize.warn(argument, f"attach({argument}=) takes {wanted}, not {given}: it was left out, and {otherwise}")

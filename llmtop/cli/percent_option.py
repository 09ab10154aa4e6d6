"""Percent on the command line."""

from __future__ import annotations

import math

import click


def parse_percent(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the value of --fail-over: a number of percent, with or without the sign (5, 5%)."""
    if value is None:
        return None
    try:
        number = float(value.strip().removesuffix("%").rstrip())
    except ValueError:
        number = math.nan
    if not (number >= 0 and math.isfinite(number)):
        raise click.BadParameter(f"{value!r} is not a percentage; pass a number of 0 or more, such as 5 or 5%")
    return number

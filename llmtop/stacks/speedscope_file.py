"""Files for https://www.speedscope.app, of whatever program: sampled stacks, or frames that open and close.

The format is described in speedscope's src/lib/file-format-spec.ts.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.stacks.samples import MAIN, Frame, Stack, ThreadId

Unit = Literal["samples", "microseconds"]
_MICROSECONDS = {"nanoseconds": 1e-3, "microseconds": 1.0, "milliseconds": 1e3, "seconds": 1e6}
_MOST = 1 << 50
"""Limit of microseconds or samples in one stack."""


class _Frame(msgspec.Struct):
    name: str = ""
    file: str | None = None
    line: float | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame] = []


class _Event(msgspec.Struct):
    type: str
    at: float
    frame: int


class _Profile(msgspec.Struct):
    type: str
    name: str = ""
    unit: str = "none"
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_Event] = []


class _File(msgspec.Struct):
    profiles: list[_Profile]
    shared: _Shared
    exporter: str | None = None


class SpeedscopeFile(NamedTuple):
    """Stacks of a file."""

    stacks: list[Stack]
    unit: Unit
    """Unit of their numbers: samples where all of them weigh the same or have no unit of time."""
    exporter: str
    """Name and version of the program that wrote it ("py-spy 0.4.3"); "" where the file does not say."""
    rate_hz: float | None
    """Samples a second of each thread; None where their weights do not tell."""


_decoder = msgspec.json.Decoder(_File)


def read_speedscope(data: bytes, what: str) -> SpeedscopeFile:
    """Read all profiles of a file, each as a thread.

    Args:
        data: the file.
        what: the sentence of a refusal is about it.

    Raises:
        UnusableInput: it is damaged, has no profile, or counts bytes.
    """
    try:
        file = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInput(
            f"{what} is not a complete speedscope file; write it again ({printable(str(error), 120)})"
        ) from None
    if any(profile.unit == "bytes" for profile in file.profiles):
        raise UnusableInput(f"{what} counts bytes, not time: open it in https://www.speedscope.app")
    timed = all(profile.unit in _MICROSECONDS for profile in file.profiles)
    counted = {weight for profile in file.profiles for weight in profile.weights}
    unit: Unit = "microseconds" if timed and (len(counted) > 1 or _is_evented(file)) else "samples"
    frames = [
        Frame(printable(one.name), one.file or "", int(one.line) if one.line else None)
        for one in file.shared.frames
    ]
    found: list[Stack] = []
    for place, profile in enumerate(file.profiles):
        scale = _MICROSECONDS.get(profile.unit, 1.0) if unit == "microseconds" else 1.0
        thread = ThreadId(None, printable(profile.name, 80) or f"profile {place}")
        if len(file.profiles) == 1:
            thread = ThreadId(None, MAIN)
        pairs: Any = _evented_stacks(profile) if profile.type == "evented" else _sampled_stacks(profile, unit)
        try:
            found += (
                Stack(None, thread, tuple(frames[frame] for frame in stack), min(round(weight * scale), _MOST))
                for stack, weight in pairs
                if round(weight * scale) > 0
            )
        except (IndexError, OverflowError, ValueError):
            raise UnusableInput(
                f"{what} is not a complete speedscope file (write it again): a stack has an unknown frame"
            ) from None
    exporter = printable((file.exporter or "").replace("@", " ", 1), 80)
    return SpeedscopeFile(found, unit, exporter, _rate_hz(file, counted) if timed and unit == "samples" else None)


def _rate_hz(file: _File, weights: set[float]) -> float | None:
    """Return the samples a second of a file all of whose samples weigh the same time."""
    units = {profile.unit for profile in file.profiles}
    if len(weights) != 1 or len(units) != 1:
        return None
    seconds = next(iter(weights)) * _MICROSECONDS[next(iter(units))] / 1e6
    return 1 / seconds if seconds > 0 else None


def _is_evented(file: _File) -> bool:
    return any(profile.type == "evented" for profile in file.profiles)


def _sampled_stacks(profile: _Profile, unit: Unit) -> list[tuple[list[int], float]]:
    weights = profile.weights if unit == "microseconds" or profile.unit == "none" else []
    given = weights or [1.0] * len(profile.samples)
    return list(zip(profile.samples, given, strict=False))


def _evented_stacks(profile: _Profile) -> list[tuple[list[int], float]]:
    """Return each stack with the time for which it was open; a frame that closes out of order closes those
    within it."""
    found: list[tuple[list[int], float]] = []
    stack: list[int] = []
    last = profile.events[0].at if profile.events else 0.0
    for event in profile.events:
        if stack and event.at > last:
            found.append((list(stack), event.at - last))
        last = event.at
        if event.type == "O":
            stack.append(event.frame)
        elif event.frame in stack:
            del stack[len(stack) - 1 - stack[::-1].index(event.frame) :]
    return found

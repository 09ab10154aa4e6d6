"""The user's settings: one TOML file, read once by the command line; what stands on the command line wins.

A library or a test that never calls `load` has the defaults: nothing here reads a file on import.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.model.bottlenecks import AlertId
from llmtop.model.setting_ranges import (
    MAX_CAPTURE_SECONDS,
    MAX_CAPTURE_STEPS,
    MAX_INTERVAL_SECONDS,
    MIN_CAPTURE_SECONDS,
    MIN_CLUSTER_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
)
from llmtop.naming.addresses import DCGM_EXPORTER
from llmtop.system.inputs import read_input

NAME = "config.toml"
_WIDE = 160

Seconds = Annotated[
    float,
    Meta(
        ge=MIN_INTERVAL_SECONDS,
        le=MAX_INTERVAL_SECONDS,
        description=f"a number of seconds from {MIN_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}",
    ),
]
ClusterSeconds = Annotated[
    float,
    Meta(
        ge=MIN_CLUSTER_INTERVAL_SECONDS,
        le=MAX_INTERVAL_SECONDS,
        description=f"a number of seconds from {MIN_CLUSTER_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}",
    ),
]
Percent = Annotated[float, Meta(gt=0, le=100, description="a number of percent above 0, at most 100")]
Factor = Annotated[float, Meta(ge=1.1, le=100, description="a factor from 1.1 to 100")]
Theme = Annotated[
    Literal["dark", "light", "contrast", "terminal"], Meta(description='"dark", "light", "contrast" or "terminal"')
]
Text = Annotated[str, Meta(min_length=1, description="a text in quotes")]
Texts = Annotated[list[Text], Meta(description="a list of texts in quotes")]
Switch = Annotated[bool, Meta(description="true or false")]
AlertIds = Annotated[list[AlertId], Meta(description="a list of alert ids (docs/configuration.md has them)")]
Dcgm = Annotated[
    str,
    Meta(
        pattern=r"^(none|http://[^/\s]+(/\S*)?)$",
        description=f'a URL of http such as "{DCGM_EXPORTER}", or "none",',
    ),
]
Steps = Annotated[
    int, Meta(ge=1, le=MAX_CAPTURE_STEPS, description=f"a whole number of steps from 1 to {MAX_CAPTURE_STEPS}")
]
Window = Annotated[
    float,
    Meta(
        ge=MIN_CAPTURE_SECONDS,
        le=MAX_CAPTURE_SECONDS,
        description=f"a number of seconds from {MIN_CAPTURE_SECONDS:g} to {MAX_CAPTURE_SECONDS:g}",
    ),
]


class BusyButIdle(Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of `low_power_full_util`."""

    power_pct: Percent | None = None
    """Of the limit: below it, at full utilisation."""
    sm_pct: Percent | None = None
    """SM activity: below it."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of an alert about a share of the step."""

    step_pct: Percent | None = None


class Straggler(Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of `straggler`."""

    step_pct: Percent | None = None
    """Of the step that a rank needs more than the others."""
    critical_pct: Percent | None = None


class Slower(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `slower`."""

    factor: Factor | None = None


class MemoryBound(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `memory_bound`."""

    dram_pct: Percent | None = None


class MemoryGrowth(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `memory_growth`."""

    memory_pct: Percent | None = None
    """Of the GPU's memory."""


class Alerts(Struct, frozen=True, forbid_unknown_fields=True):
    """Which alerts there are, and from what on."""

    off: AlertIds = []
    command: Text | None = None
    """What --on-alert runs."""
    low_power_full_util: BusyButIdle = field(default_factory=BusyButIdle)
    input_bound: Share = field(default_factory=Share)
    sync_bound: Share = field(default_factory=Share)
    communication_bound: Share = field(default_factory=Share)
    outside: Share = field(default_factory=Share)
    straggler: Straggler = field(default_factory=Straggler)
    slower: Slower = field(default_factory=Slower)
    memory_bound: MemoryBound = field(default_factory=MemoryBound)
    memory_growth: MemoryGrowth = field(default_factory=MemoryGrowth)


class Columns(Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of tables, by their titles; None: all that fit."""

    gpus: (
        Annotated[
            list[
                Literal[
                    "rank",
                    "rk",
                    "power",
                    "power W",
                    "util",
                    "SM",
                    "tens",
                    "DRAM",
                    "mem GiB",
                    "temp",
                    "MHz",
                    "PCIe rx/tx",
                    "PCIe/s",
                    "NVL/s",
                    "XGMI/s",
                    "step",
                    "waits",
                    "idle",
                    "tok/s",
                    "pid",
                ]
            ],
            Meta(description="a list of column titles as the table of GPUs has them"),
        ]
        | None
    ) = None
    """Of GPUs and ranks, beside their number and their state; in the table's own order."""
    processes: (
        Annotated[
            list[
                Literal[
                    "pid",
                    "GPU",
                    "user",
                    "GPU mem",
                    "SM",
                    "CPU",
                    "RSS",
                    "threads",
                    "read",
                    "write",
                    "state",
                    "age",
                    "command",
                ]
            ],
            Meta(min_length=1, description="a list of column titles as the table of processes has them"),
        ]
        | None
    ) = None
    captures: (
        Annotated[
            list[Literal["taken", "ago", "engine", "whom", "verdict", "step", "steps", "size", "command"]],
            Meta(min_length=1, description="a list of column titles as the list of captures has them"),
        ]
        | None
    ) = None


class Capture(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults of a capture."""

    engine: Text | None = None
    steps: Steps | None = None
    seconds: Window | None = None
    out: Text | None = None
    options: Texts = []


class Prometheus(Struct, frozen=True, forbid_unknown_fields=True):
    """How `llmtop cluster` gets at the site's Prometheus. No secret stands here: a file, or a variable, has it."""

    prometheus: Text | None = None
    """The server's URL."""
    token_file: Text | None = None
    user: Text | None = None
    ca: Text | None = None
    org: Text | None = None
    run: Text | None = None
    interval: ClusterSeconds | None = None


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set; docs/configuration.md explains it."""

    theme: Theme | None = None
    interval: Seconds | None = None
    gpus: Text | None = None
    ascii: Switch = False
    look_at_loaders: Switch = True
    """Whether a training that waits for its data is sampled for three seconds per minute, by py-spy and /proc."""
    dcgm: Dcgm | None = None
    """Where the node's dcgm-exporter is asked for what NVML does not give."""
    alerts: Alerts = field(default_factory=Alerts)
    columns: Columns = field(default_factory=Columns)
    capture: Capture = field(default_factory=Capture)
    cluster: Prometheus = field(default_factory=Prometheus)


_loaded: list[Config] = []


def current() -> Config:
    """The settings of this process: those that `load` read, else the defaults."""
    return _loaded[0] if _loaded else Config()


def config_path() -> Path:
    """Path of the file: ~/.config/llmtop/config.toml, or below $XDG_CONFIG_HOME."""
    from platformdirs import user_config_path

    return user_config_path("llmtop", appauthor=False) / NAME


def load(path: Path | None = None) -> Config:
    """Read the file, if there is one, and have it hold for this process.

    Raises:
        UnusableInput: one sentence with the file, the line and the word that is wrong.
    """
    path = path or config_path()
    config = Config()
    if os.path.isfile(path):  # of a home that may not be entered, as setpriv and su leave it: no file
        config = parse(read_input(path).decode("utf-8", "replace"), path)
    _loaded[:] = [config]
    return config


def parse(text: str, path: Path) -> Config:
    """Settings from the text of a file.

    Raises:
        UnusableInput: as `load`.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, path, str(error)) from None
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise _refusal(text, path, data, str(error)) from None
    if config.capture.steps is not None and config.capture.seconds is not None:
        raise _value_error(
            text, path, ["capture", "seconds"], '"seconds" and "steps" of a capture exclude each other'
        )
    return config


# ---- one sentence that names file, line and word ----

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_TABLE = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*([A-Za-z0-9_\-."' ]+?)\s*=""")


def _not_toml(text: str, path: Path, said: str) -> UnusableInput:
    found = _TOML_PLACE.search(said)
    lines = text.splitlines()
    number = int(found[1]) if found and found[1] else max(len(lines), 1)
    word = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    reason = _TOML_PLACE.sub("", said)
    reason = reason[:1].lower() + reason[1:]
    return UnusableInput(f'{path}, line {number}: "{printable(word, 60)}" is no TOML: {printable(reason, _WIDE)}')


def _refusal(text: str, path: Path, data: dict[str, Any], said: str) -> UnusableInput:
    where = _WHERE.search(said)
    keys = re.findall(r"[^.\[\]]+|\[[^\]]*\]", where[1]) if where else []
    inside = [key for key in keys if not key.startswith("[")]
    unknown = _UNKNOWN.search(said)
    if unknown:
        known = _setting_names(inside)
        near = difflib.get_close_matches(unknown[1], known, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(known)}"
        place_of = f" of [{'.'.join(inside)}]" if inside else ""
        return _value_error(
            text, path, [*inside, unknown[1]], f'"{printable(unknown[1], 60)}" is no setting{place_of}: {hint}'
        )
    value = _value(data, keys)
    shown = printable(msgspec.json.encode(value, enc_hook=str).decode(errors="replace"), 60)
    hint = _hint(inside)
    near = difflib.get_close_matches(value, _choices(hint), 1) if isinstance(value, str) else []
    meant = f' (did you mean "{near[0]}"?)' if near else ""
    name = inside[-1] if inside else "it"
    return _value_error(text, path, inside, f"{name} = {shown}: {_wanted(hint)} is wanted{meant}", value)


def _value_error(text: str, path: Path, keys: Sequence[str], sentence: str, value: Any = None) -> UnusableInput:
    line = _line_of(text.splitlines(), keys, value)
    return UnusableInput(f"{path}, line {line}: {sentence}" if line else f"{path}: {sentence}")


def _line_of(lines: list[str], keys: Sequence[str], value: Any) -> int:
    """The line on which a key stands, 1 for the first; that of the value, where it is of a list; 0: not found."""
    table: list[str] = []
    best = 0
    for number, line in enumerate(lines, 1):
        header, assigned = _TABLE.match(line), _KEY.match(line)
        if header:
            table = _parts(header[1])
            if table[: len(keys)] == list(keys):
                return number
        elif assigned:
            here = [*table, *_parts(assigned[1])]
            if here == list(keys):
                return _line_of_value(lines, number, value)
            if here == list(keys[: len(here)]):
                best = number  # an inline table holds it
    return best


def _line_of_value(lines: list[str], number: int, value: Any) -> int:
    if isinstance(value, str):
        for later in range(number, len(lines) + 1):
            if value in lines[later - 1]:
                return later
            if _TABLE.match(lines[later - 1]) and later > number:
                break
    return number


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _value(data: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and key[1:-1].isdigit():
            data = data[int(key[1:-1])]
    return data


def _struct_at(keys: Sequence[str]) -> type[Struct]:
    found: type[Struct] = Config
    for key in keys:
        inner = get_type_hints(found).get(key)
        if isinstance(inner, type) and issubclass(inner, Struct):
            found = inner
    return found


def _setting_names(keys: Sequence[str]) -> list[str]:
    return list(_struct_at(keys).__struct_fields__)


def _hint(keys: Sequence[str]) -> Any:
    """The type of a setting, with what is annotated to it."""
    return get_type_hints(_struct_at(keys[:-1]), include_extras=True).get(keys[-1]) if keys else None


def _choices(hint: Any) -> list[str]:
    """The words that a setting takes, where it takes only some."""
    if get_origin(hint) is Literal:
        return [str(one) for one in get_args(hint)]
    return [word for inner in get_args(hint) for word in _choices(inner)]


def _wanted(hint: Any) -> str:
    """What a setting takes, in words; a table where it is one."""
    for one in (hint, *get_args(hint)):
        for meta in getattr(one, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return "a table of settings"

"""The user's settings: one TOML file, read once by the command line; what stands on the command line wins.

A library or a test that never calls `load` has the defaults: nothing here reads a file on import.
"""

from __future__ import annotations

import math
import os
import re
import string
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from llmtop.errors import UnusableInput
from llmtop.format import encode_json, escaped_json, nearest_word, printable, size
from llmtop.model.bottlenecks import AlertId, alert_of_badge
from llmtop.model.setting_ranges import (
    MAX_CAPTURE_SECONDS,
    MAX_CAPTURE_STEPS,
    MAX_INTERVAL_SECONDS,
    MIN_CAPTURE_SECONDS,
    MIN_CLUSTER_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
)
from llmtop.naming.addresses import DCGM_EXPORTER, PROMETHEUS_EXAMPLE, is_server_url, without_login
from llmtop.naming.gpu_entries import INDEX, UUID
from llmtop.naming.lazy_pattern import lazy_pattern
from llmtop.system.inputs import open_input

NAME = "config.toml"
MAX_BYTES = 64 << 10
"""Limit of the file: with every setting and its comment it has 4 kB, and tomllib takes a second per megabyte or
more."""
_MAX_DOTS = 400
"""Limit for one line: tomllib's time for a key grows with the square of its parts, 17 s for 64 KiB."""
STRAGGLER_PCT = 10.0
"""`straggler.step_pct` where it is not set."""
STRAGGLER_CRITICAL_PCT = 20.0
"""`straggler.critical_pct` where it is not set; at least twice `step_pct`."""
_WIDE = 160

EngineOptions = Callable[[], Mapping[str, Collection[str]]]
"""Return the names of all capture engines, each with the names of its options."""

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
_GPU = rf"({INDEX}|{UUID})"
Gpus = Annotated[
    str,
    Meta(
        pattern=rf"^\s*(all|attached|{_GPU}(\s*,\s*{_GPU})*)\s*$",
        description='"all", "attached", or indices and UUIDs as nvidia-smi -L lists them (0,2 or GPU-1a2b…)',
    ),
]
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
    """Share of the power limit: an alert below it, at full utilization."""
    sm_pct: Percent | None = None
    """SM activity: below it."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of an alert about a share of the step."""

    step_pct: Percent | None = None


class Straggler(Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of `straggler`."""

    step_pct: Percent | None = None
    """Share of the step that a rank needs more than the others."""
    critical_pct: Percent | None = None


class Slower(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `slower`."""

    factor: Factor | None = None
    earlier_runs: Switch = True
    """True if a training that starts is held to an earlier run of the same command and hardware."""


class MemoryBound(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `memory_bound`."""

    dram_pct: Percent | None = None


class MemoryGrowth(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `memory_growth`."""

    memory_pct: Percent | None = None
    """Share of the GPU's memory."""


Hours = Annotated[float, Meta(gt=0, le=1e6, description="a number of hours above 0")]


class WorkAtRisk(Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold of `work_at_risk`."""

    hours: Hours | None = None
    """Age of the last checkpoint."""


class CheckpointInterval(Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs of the optimum of `checkpoint_interval`."""

    failure_hours: Hours | None = None
    """Mean time between failures of a whole job."""


class Alerts(Struct, frozen=True, forbid_unknown_fields=True):
    """Which alerts there are, and from what on."""

    off: AlertIds = []
    command: Text | None = None
    """Command of --on-alert."""
    low_power_full_util: BusyButIdle = field(default_factory=BusyButIdle)
    input_bound: Share = field(default_factory=Share)
    sync_bound: Share = field(default_factory=Share)
    communication_bound: Share = field(default_factory=Share)
    outside: Share = field(default_factory=Share)
    straggler: Straggler = field(default_factory=Straggler)
    slower: Slower = field(default_factory=Slower)
    memory_bound: MemoryBound = field(default_factory=MemoryBound)
    memory_growth: MemoryGrowth = field(default_factory=MemoryGrowth)
    work_at_risk: WorkAtRisk = field(default_factory=WorkAtRisk)
    checkpoint_interval: CheckpointInterval = field(default_factory=CheckpointInterval)


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
    """Columns of GPUs and ranks, beside their number and their state; in the table's own order."""
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
            list[Literal["taken", "ago", "engine", "target", "verdict", "step", "steps", "size", "command"]],
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


Price = Annotated[float, Meta(ge=0, le=1e6, description="a price of 0 or more")]


class Runs(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for the data that trainings leave on disk."""

    keep: Switch = True
    """True if `llmtop run` has them kept."""
    days: Annotated[int, Meta(ge=1, le=36500, description="a whole number of days from 1 to 36500")] = 90
    """For how long."""
    gib: Annotated[float, Meta(gt=0, le=100_000, description="a number of GiB above 0")] = 5.0
    """How much all of them may take; the oldest are deleted first."""
    gpu_hour_price: Price | None = None
    kwh_price: Price | None = None
    """Prices of a GPU for an hour, and of a kilowatt-hour, in `currency`."""
    currency: Text = "USD"


# fmt: off
NOTIFY_FIELDS: Final = (
    "event", "time", "host", "job", "step", "id", "severity", "summary", "next", "since", "gpu", "pid", "skipped",
)
# fmt: on
"""Fields that `notify.body` may use as $name."""


class Notify(Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts and the ends of runs are posted to. The address is a secret: a file has it."""

    url_file: Text | None = None
    """File with the URL, mode 0600; nothing is posted without it."""
    events: Annotated[
        list[Literal["raised", "resolved", "ended"]],
        Meta(min_length=1, description='a list of "raised", "resolved" and "ended"'),
    ] = field(default_factory=lambda: ["raised", "resolved", "ended"])
    body: Text | None = None
    """JSON in which $name stands for a field of `NOTIFY_FIELDS`; None: an object of all of them."""
    per_minute: Annotated[int, Meta(ge=1, le=600, description="a whole number from 1 to 600")] = 20
    """Most events; those beyond are counted in `skipped` of the next one."""


def notify_body(template: str | None, event: dict[str, Any]) -> bytes:
    """Return what is posted.

    Args:
        template: `Notify.body`.
        event: a value for each of `NOTIFY_FIELDS`.

    Raises:
        ValueError: the template names another field, or what comes of it is no JSON.
    """
    if template is None:
        return escaped_json(encode_json(event))
    fields = {name: _inside_a_string(value) for name, value in event.items()}
    try:
        made = string.Template(template).substitute(fields)
    except KeyError as error:
        raise ValueError(f"${error.args[0]} is no field: there are {', '.join(NOTIFY_FIELDS)}") from None
    except ValueError:
        raise ValueError("a $ stands alone; write $$ for the character") from None
    try:
        msgspec.json.decode(made)
    except msgspec.DecodeError:
        raise ValueError("with the values filled in it is no JSON") from None
    return made.encode()


def _inside_a_string(value: Any) -> str:
    """Return a value as it stands between the quotes of a JSON string; numbers may stand without quotes."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return escaped_json(encode_json(text)).decode()[1:-1]


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set; docs/configuration.md explains it."""

    theme: Theme | None = None
    interval: Seconds | None = None
    gpus: Gpus | None = None
    ascii: Switch = False
    look_at_loaders: Switch = True
    """True if a training that waits for its data is sampled for three seconds per minute, by py-spy and /proc."""
    dcgm: Dcgm | None = None
    """Where the node's dcgm-exporter is asked for what NVML does not give."""
    alerts: Alerts = field(default_factory=Alerts)
    columns: Columns = field(default_factory=Columns)
    capture: Capture = field(default_factory=Capture)
    cluster: Prometheus = field(default_factory=Prometheus)
    runs: Runs = field(default_factory=Runs)
    notify: Notify = field(default_factory=Notify)


_loaded: list[Config] = []


def current() -> Config:
    """Return the settings of this process: those that `load` read, else the defaults."""
    return _loaded[0] if _loaded else Config()


def config_path() -> Path:
    """Path of the file: ~/.config/llmtop/config.toml, or below $XDG_CONFIG_HOME."""
    from platformdirs import user_config_path

    return user_config_path("llmtop", appauthor=False) / NAME


def load(path: Path | None = None, engines: EngineOptions | None = None) -> Config:
    """Read the file, if there is one, and have it hold for this process.

    Args:
        path: the file; None: that of the user.
        engines: asked where the file names an engine or its options; None: these two are not checked.

    Raises:
        UnusableInput: one sentence with the file, the line and the word that is wrong.
    """
    path = path or config_path()
    text = read_text(path)
    config = Config() if text is None else parse(text, path, engines)
    _loaded[:] = [config]
    return config


def read_text(path: Path) -> str | None:
    """Return the text of the file; None without a file, and where its folder may not be entered (setpriv, su).

    Raises:
        UnusableInput: something else is in its place, it is too large, or it is not UTF-8.
    """
    try:
        os.stat(path)
    except OSError:
        if os.path.islink(path):
            raise UnusableInput(f"{path} is a link to {os.readlink(path)}, which cannot be opened") from None
        return None
    with open_input(path) as file:
        try:
            data = file.read(MAX_BYTES + 1)
            on_disk = max(os.fstat(file.fileno()).st_size, len(data))
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    if len(data) > MAX_BYTES:
        raise UnusableInput(f"{path} has {size(on_disk)}; the limit on the size of a configuration is 64 KiB")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnusableInput(f"{path} is encoded as UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")  # editors on Windows begin the file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnusableInput(
            f"{path}, line {line}: the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def parse(text: str, path: Path, engines: EngineOptions | None = None) -> Config:
    """Settings from the text of a file.

    Raises:
        UnusableInput: as `load`.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    for number, line in enumerate(text.split("\n"), 1):
        dots = line.count(".")
        if dots > _MAX_DOTS and not line.lstrip().startswith("#"):
            raise UnusableInput(f"{path}, line {number}: the line has {dots} dots; the limit is {_MAX_DOTS}")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, path, str(error)) from None
    except RecursionError:
        raise UnusableInput(f"{path} is no TOML: its lists or tables are nested too deeply") from None
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise _refusal(text, path, data, str(error)) from None
    for keys, sentence, value in (
        *_wrong_values(config),
        *_wrong_notify(config.notify),
        *_wrong_engines(config.capture, engines),
    ):
        raise value_error(text, path, keys, sentence, value)
    return config


# ---- what no type can hold ----

_Wrong = tuple[list[str], str, str | None]
"""The keys of a setting, what is wrong, and the entry where the setting is a list."""


def _wrong_values(config: Config) -> Iterator[_Wrong]:
    capture, straggler, url = config.capture, config.alerts.straggler, config.cluster.prometheus
    if capture.steps is not None and capture.seconds is not None:
        yield ["capture", "seconds"], '"seconds" and "steps" of a capture exclude each other', None
    least = straggler.step_pct or STRAGGLER_PCT
    if straggler.critical_pct is not None and straggler.critical_pct < least:
        unset = "" if straggler.step_pct else ", its default"
        sentence = (
            f"critical_pct = {straggler.critical_pct:g} is below step_pct = {least:g}{unset}: {least:g} or more"
        )
        yield ["alerts", "straggler", "critical_pct"], f"{sentence} is wanted", None
    if url is not None and not is_server_url(url):
        shown = printable(without_login(url), 60)
        near = f' (did you mean "http://{shown}"?)' if _lacks_scheme(url) else ""
        sentence = f'prometheus = "{shown}": a URL such as "{PROMETHEUS_EXAMPLE}" is wanted{near}'
        yield ["cluster", "prometheus"], sentence, None
    elif url is not None and urlsplit(url).password is not None:
        advice = f'write "{printable(without_login(url), 60)}", set user, and set $LLMTOP_PROMETHEUS_PASSWORD'
        yield ["cluster", "prometheus"], f"prometheus: the URL holds a password; {advice}", None
    if config.dcgm not in (None, "none") and not is_server_url(config.dcgm):
        yield ["dcgm"], f'dcgm = "{printable(config.dcgm, 60)}": a URL such as "{DCGM_EXPORTER}" is wanted', None


def _wrong_notify(notify: Notify) -> Iterator[_Wrong]:
    if notify.body is None:
        return
    try:
        notify_body(notify.body, dict.fromkeys(NOTIFY_FIELDS, 0))
    except ValueError as error:
        yield ["notify", "body"], f"body: {error}", None


def _lacks_scheme(url: str) -> bool:
    return "://" not in url and bool(re.search(r"[.:]", url)) and is_server_url(f"http://{url}")


def _wrong_engines(capture: Capture, engines: EngineOptions | None) -> Iterator[_Wrong]:
    if engines is None or (capture.engine is None and not capture.options):
        return
    known = engines()
    if capture.engine is not None and capture.engine not in known:
        yield ["capture", "engine"], _unknown("engine", capture.engine, "engine", list(known)), None
        return
    of_engine = known.items() if capture.engine is None else [(capture.engine, known[capture.engine])]
    options = [option for _, names in of_engine for option in names]
    for option in capture.options:
        if option not in options:
            whose = f"option of {capture.engine}" if capture.engine else "option of any engine"
            yield ["capture", "options"], _unknown("options", option, whose, options), option


def _unknown(name: str, value: str, kind: str, known: list[str]) -> str:
    near = nearest_word(value, known)
    hint = f'did you mean "{near}"?' if near else f"there are {', '.join(known) or 'none'}"
    return f'{name} = "{printable(value, 60)}" is no {kind}: {hint}'


# ---- one sentence that names file, line and word ----

_TOML_PLACE = lazy_pattern(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_WHERE = lazy_pattern(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = lazy_pattern(r"unknown field `([^`]*)`")
_TABLE = lazy_pattern(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = lazy_pattern(r"""^\s*([A-Za-z0-9_\-."' ]+?)\s*=""")


def _not_toml(text: str, path: Path, said: str) -> UnusableInput:
    found = _TOML_PLACE.search(said)
    lines = text.split("\n")  # as TOML counts them; splitlines() also ends lines at U+2028 and others
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
        near = nearest_word(unknown[1], known)
        hint = f'did you mean "{near}"?' if near else _home(unknown[1]) or f"there are {', '.join(known)}"
        place_of = f" of [{'.'.join(inside)}]" if inside else ""
        return value_error(
            text, path, [*inside, unknown[1]], f'"{printable(unknown[1], 60)}" is no setting{place_of}: {hint}'
        )
    value = _value(data, keys)
    is_odd = isinstance(value, float) and not math.isfinite(value)  # JSON has no name for these
    written = str(value) if is_odd else msgspec.json.encode(value, enc_hook=str).decode(errors="replace")
    shown = printable(written, 60)
    hint = _hint(inside)
    words = _choices(hint) or re.findall(r'"(\w+)"', _expected_values(hint))
    badged = alert_of_badge(value) if isinstance(value, str) and inside[-1:] == ["off"] else None
    near = badged or (nearest_word(value, words) if isinstance(value, str) else None)
    meant = f' (did you mean "{near}"?)' if near else ""
    name = inside[-1] if inside else "it"
    return value_error(text, path, inside, f"{name} = {shown}: {_expected_values(hint)} is wanted{meant}", value)


def _home(name: str) -> str:
    """Return where a setting belongs that is in another table; "" where nowhere."""
    if name in _setting_names([]):
        return "it belongs above the first [table]"
    return next((f"it belongs into [{one}]" for one in _setting_names([]) if name in _setting_names([one])), "")


def value_error(text: str, path: Path, keys: Sequence[str], sentence: str, value: Any = None) -> UnusableInput:
    """Return the error about a setting: file, line and sentence; `keys` are its table and its name."""
    line = _line_of(text.split("\n"), keys, value)
    return UnusableInput(f"{path}, line {line}: {sentence}" if line else f"{path}: {sentence}")


def _line_of(lines: list[str], keys: Sequence[str], value: Any) -> int:
    """Return the line on which a key stands, 1 for the first; that of the value, where it is of a list; 0: not
    found."""
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
            if here == list(keys[: len(here)]) or here[: len(keys)] == list(keys):
                best = number  # an inline table holds it, or a dotted key has it as its table
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
    """Return the type of a setting, with what is annotated to it."""
    return get_type_hints(_struct_at(keys[:-1]), include_extras=True).get(keys[-1]) if keys else None


def _choices(hint: Any) -> list[str]:
    """Return the words that a setting takes, where it takes only some."""
    if get_origin(hint) is Literal:
        return [str(one) for one in get_args(hint)]
    return [word for inner in get_args(hint) for word in _choices(inner)]


def _expected_values(hint: Any) -> str:
    """Values that a setting takes, in words; "table" for a table."""
    for one in (hint, *get_args(hint)):
        for meta in getattr(one, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return "a table of settings"

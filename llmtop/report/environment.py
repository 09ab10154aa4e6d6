"""Environment of a captured training: its GPUs, driver, torch, commit and command, from capture.json."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import msgspec

from llmtop.errors import UnusableInput
from llmtop.naming import file_names
from llmtop.system.inputs import read_input

_HASH = 12
"""Characters of a commit that tell it from others."""
_NO_CHANGES = hashlib.sha256(b"").hexdigest()
_MOST_WORDS = 12
_MOST_ROWS = 20
"""Variables and packages that are listed one by one."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Origin and object of a capture, from its folder. None means unknown."""

    gpus: tuple[str, ...] = ()
    """The models of those that were there, in order."""
    power_limit_watts: tuple[float, ...] = ()
    """Power limits of those GPUs that report one."""
    host: str | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    """True if tracked files differed from the commit."""
    command: str | None = None
    ranks: int | None = None
    """How many processes were captured."""
    python: str | None = None
    cpu: str | None = None
    governor: str | None = None
    image: str | None = None
    """Image of the container, by digest where that is known."""
    diff: str | None = None
    """Beginning of the SHA-256 of the changes to the commit; None without changes."""
    packages: dict[str, str] = {}
    """Versions by name, as in pip freeze."""
    variables: dict[str, str] = {}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which the environments of two captures differ; None where one does not tell it."""

    name: str
    before: str | None
    after: str | None
    told: str = ""
    """Change in words, where that is shorter than both values: for example of a command."""


def read_environment(path: Path) -> Environment | None:
    """Read capture.json beside a capture; None where there is none that can be read.

    Args:
        path: the folder of the capture, or a file in it.
    """
    folder = path if path.is_dir() else path.parent
    found = _read(folder / file_names.CAPTURE_INFO)
    if found is None:
        return None
    around = parse_environment(_read(folder / file_names.ENVIRONMENT))
    git = found.get("git")
    git = git if isinstance(git, dict) else {}
    listed = found.get("gpus_before")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    pids, dirty = found.get("pids"), git.get("dirty")
    limits = [gpu.get("power_limit_watts") for gpu in gpus]
    told = Environment(
        gpus=tuple(name for gpu in gpus if (name := _text(gpu, "name"))),
        power_limit_watts=tuple(float(limit) for limit in limits if isinstance(limit, int | float)),
        host=_text(found, "host"),
        driver=_text(found, "driver"),
        cuda=_text(found, "cuda"),
        torch=_text(found, "torch"),
        commit=_text(git, "commit"),
        dirty=dirty if isinstance(dirty, bool) else None,
        command=_text(found, "command"),
        ranks=len(pids) if isinstance(pids, list) and pids else None,
    )
    names = ("python", "cpu", "governor", "image", "diff", "packages", "variables")
    more = {} if around is None else {name: getattr(around, name) for name in names}
    return msgspec.structs.replace(told, **more)


def stopped_early_of(path: Path) -> str | None:
    """Return the sentence of capture.json on a capture that recorded less than was asked for.

    Args:
        path: as of `read_environment`.
    """
    found = _read((path if path.is_dir() else path.parent) / file_names.CAPTURE_INFO)
    return None if found is None else _text(found, "stopped_early")


def parse_environment(found: dict[str, Any] | None) -> Environment | None:
    """Return the environment from environment.json or from the header of a recording; None without either."""
    if found is None or not isinstance(machine := found.get("machine"), dict):
        return None
    python, git = (value if isinstance(value := found.get(name), dict) else {} for name in ("python", "git"))
    listed = machine.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    container = machine.get("container")
    container = container if isinstance(container, dict) else {}
    governors = machine.get("cpu_governor")
    words, dirty = found.get("command"), git.get("dirty")
    return Environment(
        gpus=tuple(name for gpu in gpus if (name := _text(gpu, "name"))),
        host=_text(machine, "host"),
        driver=_text(machine, "driver"),
        cuda=_text(python, "cuda") or _text(machine, "cuda"),
        torch=_text(python, "torch"),
        commit=_text(git, "commit"),
        dirty=dirty if isinstance(dirty, bool) else None,
        command=" ".join(map(str, words)) if isinstance(words, list) and words else None,
        python=_text(python, "version"),
        cpu=_text(machine, "cpu"),
        governor=", ".join(sorted(map(str, governors))) if isinstance(governors, dict) and governors else None,
        image=_text(container, "digest") or _text(container, "image"),
        diff=_changes(git),
        packages=_packages(python.get("packages")),
        variables=_texts(found.get("variables")),
    )


def _changes(git: dict[str, Any]) -> str | None:
    """Return the beginning of the hash of the changes; None without changes, or where it is unknown."""
    stored, text = _text(git, "diff_sha256"), _text(git, "diff")
    if stored is None and text is not None:  # files of versions that stored the text alone
        stored = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return None if stored is None or stored == _NO_CHANGES else stored[:_HASH]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(read_input(path), type=dict[str, Any])
    except (UnusableInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _packages(lines: object) -> dict[str, str]:
    """Name and version of each line of pip freeze."""
    found = {}
    for line in lines if isinstance(lines, list) else []:
        name, _, version = str(line).partition(" @ " if " @ " in str(line) else "==")
        found[name] = version
    return found


def _texts(values: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value else None


def differences(before: Environment | None, after: Environment | None) -> tuple[Difference, ...]:
    """Return the differences of two environments, as far as both have the fact; and facts of one alone, if that
    one has more.

    Args:
        before: of the first capture; None where it tells nothing.
        after: of the second.
    """
    if before is None or after is None:
        return ()
    found = []
    for (name, one), (_, other) in zip(_known_fields(before), _known_fields(after), strict=True):
        if one != other and (one is not None or other is not None):
            changed = words_changed(one, other) if name == "command" and one and other else ""
            found.append(Difference(name=name, before=one, after=other, told=changed))
    return (*found, *_table_differences(before, after))


def _table_differences(before: Environment, after: Environment) -> list[Difference]:
    """Variables and packages that differ, one by one, where both sides list any."""
    found = []
    if before.python and after.python:
        found += _key_differences("$", before.variables, after.variables)
    if before.packages and after.packages:
        found += _key_differences("package ", before.packages, after.packages)
    left = len(found) - _MOST_ROWS
    if left > 0:
        found[_MOST_ROWS:] = [Difference(name="packages", before=None, after=None, told=f"{left} more differ")]
    return found


def _key_differences(prefix: str, before: dict[str, str], after: dict[str, str]) -> list[Difference]:
    return [
        Difference(name=f"{prefix}{name}", before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _known_fields(of: Environment) -> list[tuple[str, str | None]]:
    commit = None if of.commit is None else of.commit[:_HASH] + (" and changes" if of.dirty else "")
    limits = sorted({f"{limit:.0f} W" for limit in of.power_limit_watts})
    return [
        ("GPUs", _names_text(of.gpus)),
        ("power limit", ", ".join(limits) or None),
        ("ranks", None if of.ranks is None else str(of.ranks)),
        ("driver", of.driver),
        ("CUDA", of.cuda),
        ("torch", of.torch),
        ("commit", commit),
        ("changes to the commit", of.diff),
        ("Python", of.python),
        ("container", of.image),
        ("CPU", of.cpu),
        ("governor", of.governor),
        ("host", of.host),
        ("command", of.command),
    ]


def _names_text(names: tuple[str, ...]) -> str | None:
    different = dict.fromkeys(names)
    return ", ".join(f"{names.count(name)} x {name}" for name in different) or None


def words_changed(before: str, after: str) -> str:
    """Return which words of a command went (-) and which came (+); "" where that is no shorter than both
    commands."""
    import difflib

    one, other = _words(before), _words(after)
    gone, come = [], []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind != "equal":
            gone += one[a:b]
            come += other[c:d]
    if len(gone) + len(come) > _MOST_WORDS or len(gone) + len(come) >= min(len(one), len(other)):
        return ""
    return "  ".join(f"{sign} {' '.join(words)}" for sign, words in (("-", gone), ("+", come)) if words)


def _words(command: str) -> list[str]:
    """Return the words of a command; an option and its value are one."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    joined: list[str] = []
    for word in words:
        last = joined[-1] if joined else ""
        if last.startswith("--") and " " not in last and "=" not in last and not word.startswith("-"):
            joined[-1] = f"{last} {word}"
        else:
            joined.append(word)
    return joined

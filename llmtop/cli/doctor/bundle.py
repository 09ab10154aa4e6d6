"""A redacted archive for a bug report: what llmtop knows of this machine, its settings and its own errors.

Every text passes the secret filter. The home folder, the user's name and the host's name are replaced: they tell
nothing about a fault. Nothing is sent anywhere.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from llmtop.cli.own_command import run_own_command
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.redaction.secret_filter import variable_without_secrets, without_secrets

LOGS: Final = 5
"""The newest logs of llmtop's own errors."""
LOG_BYTES: Final = 256 << 10
SNAPSHOT_SECONDS: Final = 60.0
PACKAGES: Final = (
    "llmtop-monitor", "textual", "nvidia-ml-py", "psutil", "nvtx", "py-spy", "msgspec", "click", "numpy", "torch",
    "amdsmi", "tpu-info", "prometheus-client", "httpx", "ncu-report", "mcp",
    "opentelemetry-exporter-otlp-proto-http",
)  # fmt: skip
_PERSONAL: Final = frozenset({"host", "hostname", "user"})
_SHORTEST_NAME: Final = 3
"""A shorter name of a user or host stands in other words too, and is left."""


class BundlePart(NamedTuple):
    """One file of the archive."""

    name: str
    content: str
    """Content of the file, in words."""
    read: Callable[[], str]


def bundle_parts(diagnosis: msgspec.Struct) -> list[BundlePart]:
    """Return what a bundle holds.

    Args:
        diagnosis: what `llmtop doctor` found.
    """
    from llmtop.system.crash import log_dir

    parts = [
        BundlePart("doctor.json", "what this machine supports, as llmtop doctor --json", lambda: _json(diagnosis)),
        BundlePart("machine.json", "operating system, processor, driver, container", _machine),
        BundlePart("versions.json", "versions of Python, llmtop and the packages it uses", _versions),
        BundlePart("settings.json", "settings of config.toml other than the defaults", _settings),
        BundlePart("snapshot.json", "one snapshot: GPUs, processes, ranks, alerts", _snapshot),
    ]
    logs = sorted(log_dir().glob("error-*.log"))[-LOGS:]
    parts += [BundlePart(f"errors/{log.name}", "log of an error of llmtop's own", _reader(log)) for log in logs]
    return parts


def write_bundle(path: Path, parts: list[BundlePart]) -> None:
    """Write the archive, readable by its owner alone.

    Args:
        path: a new file.
        parts: what it holds.

    Raises:
        UnusableInput: the file exists.
        NotPossibleHere: it cannot be written.
    """
    replaced = _personal_words()
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UnusableInput(f"{path} exists; name another file") from None
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for part in parts:
                _add(archive, part.name, redacted(part.read(), replaced))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None


def redacted(text: str, replaced: Mapping[str, str]) -> str:
    """Return a text without secrets and without these words.

    Args:
        text: JSON, whose values are filtered by the names of their fields, or any other text.
        replaced: what stands for each word.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return _replace_words(without_secrets(text), replaced)
    return json.dumps(_redacted_value("", value, replaced), indent=1, ensure_ascii=False) + "\n"


def _redacted_value(name: str, value: Any, replaced: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            _replace_words(without_secrets(key), replaced): _redacted_value(key, one, replaced)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted_value(name, one, replaced) for one in value]
    if isinstance(value, str) and name in _PERSONAL:
        return name.upper()
    if isinstance(value, str):
        return _replace_words(variable_without_secrets(name, value), replaced)
    return value


def _replace_words(text: str, replaced: Mapping[str, str]) -> str:
    if not replaced:
        return text
    words = "|".join(map(re.escape, replaced))
    return re.sub(rf"(?<![\w-])(?:{words})(?![\w-])", lambda found: replaced[found[0]], text)


def _personal_words() -> dict[str, str]:
    """Placeholders for home folder, host and user. The longest comes first: the home folder contains the user's
    name."""
    found = {str(Path.home()): "~"}
    host = platform.node()
    found |= {host: "HOST", host.partition(".")[0]: "HOST"}
    with contextlib.suppress(KeyError, OSError):  # a user without an entry
        found[getpass.getuser()] = "USER"
    return {word: found[word] for word in sorted(found, key=len, reverse=True) if len(word) >= _SHORTEST_NAME}


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    member = tarfile.TarInfo(f"llmtop-bundle/{name}")
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _machine() -> str:
    from llmtop.environment.machine import read_machine

    return _json(read_machine())


def _versions() -> str:
    found: dict[str, str | None] = {"python": sys.version, "platform": platform.platform()}
    found |= {name: next((one.version for one in metadata.distributions(name=name)), None) for name in PACKAGES}
    return _json(found)


def _settings() -> str:
    from llmtop.config import Config, current

    chosen, usual = msgspec.to_builtins(current()), msgspec.to_builtins(Config())
    return _json({name: value for name, value in chosen.items() if value != usual[name]})


def _snapshot() -> str:
    """Return a snapshot taken in a process of its own: the reported fault may end it."""
    try:
        done = run_own_command("--once", "--json", seconds=SNAPSHOT_SECONDS)
    except NotPossibleHere as error:
        return f"{error}\n"
    return done.stdout if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr}"


def _reader(path: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            with path.open("rb") as file:
                return file.read(LOG_BYTES).decode("utf-8", "replace")
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}\n"

    return read


def new_bundle_path() -> Path:
    """Return the name of a new bundle in the current folder.

    Raises:
        NotPossibleHere: the current folder is gone.
    """
    try:
        return Path.cwd() / f"llmtop-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    except OSError as error:
        raise NotPossibleHere(
            f"the current folder cannot be read (change to another one): {error.strerror}"
        ) from None

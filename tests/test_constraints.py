"""constraints.txt holds one version of each package that the extras and the scripts beside this file install."""

from __future__ import annotations

import re
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
TEXT = (REPOSITORY / "constraints.txt").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
OWN = PROJECT["name"]


def _requirements(text: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line]


def _environment(python: str, machine: str = "x86_64") -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }


def _pins(environment: dict[str, str]) -> dict[str, str]:
    """The version of each package there."""
    pins: dict[str, str] = {}
    for pin in _requirements(TEXT):
        if pin.marker is None or pin.marker.evaluate(environment):
            (version,) = pin.specifier
            name = canonicalize_name(pin.name)
            assert version.operator == "=="
            assert name not in pins, f"two versions of {name}"
            pins[name] = version.version
    return pins


def _wanted() -> list[Requirement]:
    texts = [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    wanted = [Requirement(text) for text in texts] + _requirements((REPOSITORY / "tests/fetched.in").read_text())
    return [one for one in wanted if canonicalize_name(one.name) != OWN]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_is_pinned_within_its_range(python: str, machine: str) -> None:
    environment = _environment(python, machine)
    pins = _pins(environment)
    wanted = [one for one in _wanted() if one.marker is None or one.marker.evaluate(environment)]
    assert len(wanted) > 40
    missing = [one.name for one in wanted if canonicalize_name(one.name) not in pins]
    assert not missing, "run make constraints"
    outside = [str(one) for one in wanted if not one.specifier.contains(pins[canonicalize_name(one.name)])]
    assert not outside, "run make constraints"


def test_no_index_and_no_address_is_named() -> None:
    assert "://" not in TEXT
    assert not re.search(r"^\s*-|\s@\s", TEXT, re.MULTILINE)


@pytest.mark.parametrize("script", sorted(path.name for path in (REPOSITORY / "tests").glob("fetch_*.sh")))
def test_what_a_script_installs_is_pinned(script: str) -> None:
    code = re.sub(r"\\\n", " ", (REPOSITORY / "tests" / script).read_text())
    pins = [_pins(_environment(python)) for python in PYTHONS]
    for arguments in re.findall(r'^\s*pip_install "\S+" (.*?) \|\| \{$', code, re.MULTILINE):
        names = re.sub(r'--target "\S+"|--no-deps', "", arguments).split()
        assert names
        assert not [name for name in names if not all(canonicalize_name(name) in known for known in pins)]
    others = re.findall(r"-m pip install .*", re.sub(r"^pip_install\(\).*$", "", code, flags=re.MULTILINE))
    assert all("==" in command for command in others), "pip_install of fetch_tries.sh installs what is pinned"


def _installed(extras: set[str]) -> dict[str, str]:
    """Versions of what is installed because llmtop with these extras is, without llmtop."""
    found: dict[str, str] = {}
    waiting, seen = [(OWN, frozenset(extras))], set()
    while waiting:
        name, wanted = waiting.pop()
        for text in metadata.requires(name) or ():
            one = Requirement(text)
            of_extras = ({"extra": extra} for extra in ("", *wanted))
            if one.marker is not None and not any(map(one.marker.evaluate, of_extras)):
                continue
            key = (canonicalize_name(one.name), frozenset(one.extras))
            if key not in seen:
                seen.add(key)
                waiting.append(key)
                found[key[0]] = metadata.version(key[0]).partition("+")[0]
    found.pop(OWN, None)
    return found


@pytest.mark.constraints
def test_what_is_installed_is_what_is_pinned() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pins, installed = _pins(_environment(version)), _installed({"dev"})
    others = {name: found for name, found in installed.items() if pins.get(name, found) != found}
    if others:
        pytest.skip(f"this environment was not installed with constraints.txt: {others}")
    assert not installed.keys() - pins.keys(), "run make constraints"

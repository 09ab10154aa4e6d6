"""The Python that a command starts: which it is, and what it has; asked of itself."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmtop.environment.model import PythonFacts
from llmtop.environment.programs import run_for_text
from llmtop.naming import variable_names
from llmtop.redaction.secret_filter import without_secrets

PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?$")
"""File name of a Python interpreter."""
_ASK_SECONDS = 60.0
"""collect_env looks at every package and starts a dozen programs; torch alone takes seconds to import."""
_ASKED = r"""
import json, sys
from importlib import metadata
found = {"executable": sys.executable, "version": sys.version.split()[0], "packages": []}
for one in metadata.distributions():
    name = one.metadata["Name"]
    if not name:
        continue
    line = name + "==" + (one.version or "?")
    try:
        direct = json.loads(one.read_text("direct_url.json") or "null")
    except Exception:
        direct = None
    if direct and direct.get("url"):
        vcs = direct.get("vcs_info") or {}
        line = name + " @ " + (vcs.get("vcs", "") + "+" if vcs else "") + direct["url"]
        line += "@" + vcs["commit_id"] if vcs.get("commit_id") else ""
    found["packages"].append(line)
found["packages"] = sorted(set(found["packages"]), key=str.lower)
try:
    if sys.argv[1:] != ["torch"]:
        raise ImportError
    import torch
    found["torch"], found["cuda"] = str(torch.__version__), torch.version.cuda
    from torch.utils.collect_env import get_pretty_env_info
    found["torch_collect_env"] = get_pretty_env_info()
except ImportError:
    pass
except Exception as error:
    found["note"] = "torch.utils.collect_env failed: " + repr(error)
sys.stdout.write("\n" + json.dumps(found))
"""


def find_python(command: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Return the Python that a command line starts, as far as its words and its program's first line show it."""
    path = variables.get("PATH")
    for place, word in enumerate(command):
        if PYTHON.match(Path(word).name) and (found := shutil.which(word, path=path)):
            return found
        if place == 0 and (found := _by_first_line(shutil.which(word, path=path))):
            return found
    return None


def _by_first_line(program: str | None) -> str | None:
    """Return the Python of a script such as torchrun, accelerate or deepspeed."""
    try:
        with open(program or "", "rb") as file:
            first = file.readline(512).decode(errors="replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    named = [word for word in words if PYTHON.match(Path(word).name)]
    return shutil.which(named[0]) if named else None


def python_facts(
    command: Sequence[str], variables: Mapping[str, str], *, torch: bool = True
) -> PythonFacts | None:
    """Return facts of a command's Python; None where its words do not show which one that is.

    Args:
        command: its words.
        variables: its environment.
        torch: whether torch is imported and asked, too.
    """
    python = find_python(command, variables)
    return None if python is None else _query_python(python, tuple(sorted(variables.items())), torch)


@functools.lru_cache(maxsize=8)
def _query_python(python: str, variables: tuple[tuple[str, str], ...], torch: bool) -> PythonFacts:
    # It is no training: nothing attaches, and no GPU memory is taken beside the next run.
    kept = {name: value for name, value in variables if not name.startswith(variable_names.PROFILER_PREFIXES)}
    words = [python, "-c", _ASKED, *(["torch"] if torch else [])]
    printed = run_for_text(words, seconds=_ASK_SECONDS, variables={**kept, variable_names.OFF: "1"})
    try:
        found: dict[str, Any] = json.loads((printed or "").rpartition("\n")[2])
    except ValueError:
        return PythonFacts(executable=python, note="it did not say in time what it has")
    told = found.get("torch_collect_env")
    return PythonFacts(
        executable=python,
        version=found.get("version"),
        torch=found.get("torch"),
        cuda=found.get("cuda"),
        packages=[without_secrets(str(line)) for line in found.get("packages", [])],
        torch_collect_env=None if told is None else without_secrets(str(told)),
        note=found.get("note"),
    )

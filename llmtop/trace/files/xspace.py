"""An .xplane.pb, XLA's own file of a trace: read with the package xprof, where that is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.system.inputs import Limits, file_bytes
from llmtop.trace import model
from llmtop.trace.files import chrome_json, xspace_program
from llmtop.trace.xla import viewer as xla_viewer
from llmtop.trace.xla.viewer import ENDING, INSTALL

_RANK = re.compile(r"rank(\d{1,6})[._]")
"""How a capture names the file of a rank, which XLA does not say."""
_SECONDS = 300.0
"""A window of some steps takes xprof a second or two."""


def load(path: Path, limits: Limits) -> model.Trace:
    """Read one file, by what xprof makes of it.

    Args:
        path: the file.
        limits: how much of memory and time it may ask for.

    Raises:
        UnusableInput: it is no such file, damaged, or beyond a limit.
        NotPossibleHere: xprof is not installed, or does not load.
    """
    if not xla_viewer.is_xprof_installed():
        raise NotPossibleHere(
            f"{path} is read with the package xprof, which is not installed here: {INSTALL}; the .trace.json.gz "
            "that JAX writes beside it needs nothing"
        )
    on_disk = file_bytes(path)

    begun = False

    def check(read: chrome_json.EventCollector) -> None:
        nonlocal begun
        begun = True
        limits.check_events(path, read.seen, on_disk)
        limits.check_number(path, "name_characters", read.names.characters)

    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder, tempfile.TemporaryFile() as said:
        # xprof puts files of its own beside what it reads.
        link = Path(folder) / path.name
        link.symlink_to(path.absolute())
        process = subprocess.Popen(
            [sys.executable, str(Path(xspace_program.__file__)), str(link)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        patience = threading.Timer(_SECONDS, process.kill)
        patience.start()
        try:
            assert process.stdout is not None
            with process.stdout as stream:
                trace = chrome_json.load(stream, str(path), check)
        except UnusableInput:
            if begun:  # it has events: a limit refuses them
                raise
            process.kill()
            said.seek(0)
            raise _failure_text(path, said.read()) from None
        finally:
            patience.cancel()
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS)
    named = _RANK.match(path.name)
    if named is not None and not trace.ranks:
        trace.ranks.append(model.TracedRank(next(iter(trace.process_names)), int(named[1]), 0))
    return trace


def _failure_text(path: Path, said: bytes) -> Exception:
    """Return why xprof gave no events, in a sentence."""
    lines = said.decode(errors="replace").strip().splitlines()
    last = printable(lines[-1], 160) if lines else ""
    if "ModuleNotFoundError" in last or "ImportError" in last:
        return NotPossibleHere(f"xprof does not load here ({last}): {INSTALL}")
    return UnusableInput(f"{path} is no {ENDING}, cut or damaged: xprof finds no events in it")

"""Reports of ncu recorded on an H100, ncu's own pages of them, and a stand-in for the program that wrote them."""

from __future__ import annotations

import lzma
import re
import stat
import sys
from pathlib import Path

from tests.support.data import DATA

RECORDED = ("gpt0", "gpt2", "uncoalesced", "conflicts")
"""gpt0, gpt2: the hottest kernel of a GPT and its third, bf16 products. The other two have a planted fault."""
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
"""The kernel of gpt0."""
_ROW = re.compile(r"^ {4}(\S.*?) {2,}(?:(\S+) +)?([\d,.]+)$")


def unpacked(name: str, folder: Path) -> Path:
    """A recorded report in `folder`."""
    target = folder / f"{name}.ncu-rep"
    target.write_bytes(lzma.decompress((DATA / "ncu" / f"{name}.ncu-rep.xz").read_bytes()))
    return target


def page(name: str) -> dict[str, tuple[float, str]]:
    """ncu's own page on it: value and unit by the name of the metric, the first of that name."""
    found: dict[str, tuple[float, str]] = {}
    for line in (DATA / "ncu" / f"{name}.details.txt").read_text().splitlines():
        match = _ROW.match(line)
        if match:
            found.setdefault(match[1], (float(match[3].replace(",", "")), match[2] or ""))
    return found


_PROGRAM = '''#!{python}
"""Behaves as ncu 2025.3: takes its options, runs the program, says ==PROF==, writes a report, or fails so."""
import pathlib, shutil, subprocess, sys

REPORT, WAY = pathlib.Path({report!r}), pathlib.Path({way!r}).read_text()
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit(0)
known = {{"--set": 1, "--clock-control": 1, "--target-processes": 1, "--kernel-name-base": 1, "--kernel-name": 1,
         "--launch-skip": 1, "--launch-count": 1, "--kill": 1, "-f": 0, "-o": 1}}
options = {{}}
while words and words[0].startswith("-"):
    name = words.pop(0)
    if name not in known:
        sys.exit(f"==ERROR== unrecognised option '{{name}}'. Use --help for further details.")
    options[name] = words.pop(0) if known[name] else ""
(REPORT.parent / "options").write_text(repr((options, words)))
if WAY == "refuse":
    sys.exit("==ERROR== Failed to prepare kernel for profiling\\n==ERROR== LibraryNotLoaded")
child = subprocess.Popen(words)
print(f"==PROF== Connected to process {{child.pid}} ({{words[0]}})", flush=True)
if WAY == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
          "Counters on the target device 0. For instructions on enabling permissions and to get more information "
          "see https://developer.nvidia.com/ERR_NVGPUCTRPERM", flush=True)
code = child.wait()
print(f"==PROF== Disconnected from process {{child.pid}}", flush=True)
if WAY in ("permission", "nothing"):
    print("==WARNING== No kernels were profiled.")
    sys.exit(code)
print('==PROF== Profiling "kernel": 0%....50%....100% - 41 passes')
shutil.copy(REPORT, options["-o"] + ".ncu-rep")
print("==PROF== Report: " + options["-o"] + ".ncu-rep")
'''


class StandInNcu:
    """An executable that takes ncu's place."""

    def __init__(self, folder: Path, recorded: str = "gpt0") -> None:
        """Make one that "measures" a recorded report.

        Args:
            folder: empty; what it is made of goes there.
            recorded: which report it writes.
        """
        self.path = folder / "ncu"
        self._way = folder / "way"
        self._options = folder / "options"
        self.fails("")
        program = _PROGRAM.format(
            python=sys.executable, report=str(unpacked(recorded, folder)), way=str(self._way)
        )
        self.path.write_text(program)
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def fails(self, way: str) -> None:
        """From now on it fails: "permission", "nothing", "refuse", or "" not at all."""
        self._way.write_text(way)

    @property
    def called_with(self) -> tuple[dict[str, str], list[str]]:
        """Its options and the program's words, when it was run last."""
        import ast

        options, words = ast.literal_eval(self._options.read_text())
        return options, words

    @property
    def was_run(self) -> bool:
        """Whether it was asked to measure anything."""
        return self._options.exists()

"""Files of other tools that people try: what each is, and what to run instead. By content, as far as it tells."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

CAPTURE = "llmtop capture --engine torch.profiler"
_VIEW = "open it in https://ui.perfetto.dev"
_FOLD = "stackcollapse-perf.pl > FILE.folded && llmtop report FILE.folded"


class ForeignFile(NamedTuple):
    """Name of a file's format, and the next action."""

    what: str
    """Text after "is": "a profile of Firefox"."""
    next: str
    """A command or an address, as a clause of its own; FILE stands for the file's path."""

    def sentence(self, path: object) -> str:
        """Return what the file at a path is, and the next step."""
        return f"{path} is {self.what}; next: {self.next.replace('FILE', str(path))}"


class _Sign(NamedTuple):
    pattern: re.Pattern[bytes]
    file: ForeignFile


def _sign(pattern: bytes, what: str, follows: str, flags: int = 0) -> _Sign:
    return _Sign(re.compile(pattern, re.DOTALL | flags), ForeignFile(what, follows))


_FLIGHT_RECORDER = "a dump of PyTorch's flight recorder (collectives of one rank, without kernels)"
_FLIGHT_RECORDER_NEXT = "torchfrtrace FOLDER --prefix PREFIX of the dumps compares all ranks"
_PERF_TEXT = (
    rb"(?:#[^\n]*\n|\s*\n)*[^\n]*?\S\s+\d+(?:/\d+)?\s+(?:\[\d+\]\s+)?\d+\.\d+:\s+(?:\d+\s+)?[\w:/.-]+:[^\n]*\n"
    rb"\s+[0-9a-f]+ "
)
"""A line of a sample (command, pid, CPU, time, event), and the first frame below it."""

_SIGNS = (
    _sign(rb"PERFILE2", "what perf record wrote (perf.data)", f"perf script -i FILE | {_FOLD}"),
    _sign(_PERF_TEXT, "the text of perf script", f"{_FOLD.replace('.pl >', '.pl FILE >')}"),
    _sign(
        rb'\s*\{.{0,20000}?"(?:comm_lib_version|pg_config|pg_status)"\s*:',
        _FLIGHT_RECORDER,
        _FLIGHT_RECORDER_NEXT,
    ),
    _sign(
        rb'\s*\{.{0,4000}"schema"\s*:\s*"[\d.]+(?:-chakra[\d.]*)?".{0,4000}"nodes"\s*:',
        "an execution trace of PyTorch (operators and their inputs, without kernels)",
        f"a trace with times: {CAPTURE}",
    ),
    _sign(
        rb'\s*\{.{0,4000}"nodes"\s*:\s*\[\s*\{.{0,4000}"(?:ctrl_deps|rf_id|root_node)"',
        "an execution trace of PyTorch (operators and their inputs, without kernels)",
        f"a trace with times: {CAPTURE}",
    ),
    _sign(
        rb"\s*\[\s*\[\s*(?:-?\d+\s*,\s*\d\s*,\s*-?\d+\s*,\s*\d+\s*\]|\d{12,}\s*,\s*\d{12,}\s*[,\]])",
        "a memory timeline of torch.profiler (export_memory_timeline), without names",
        "who holds memory: llmtop capture --engine memory",
    ),
    _sign(
        rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:',
        "JSON of rocprofv3 (rocprofiler-sdk)",
        f"rocprofv3 --output-format pftrace for https://ui.perfetto.dev, or {CAPTURE}",
    ),
    _sign(
        rb'\s*\{.{0,200}"nodes"\s*:\s*\[.{0,400}"callFrame"',
        "a CPU profile of V8 (Chrome, Node.js)",
        "open it in the browser's developer tools",
    ),
    _sign(
        rb'\s*\{.{0,100000}"(?:geckoProfile|processType|stackWalk)"\s*:',
        "a profile of Firefox",
        "open it in https://profiler.firefox.com",
    ),
    _sign(
        rb"(?:# callgrind format|(?:version|creator|pid|cmd|positions|desc):[^\n]*\n.{0,2000}^(?:events|fn)[:=])",
        "what Callgrind counted",
        "callgrind_annotate FILE",
        re.MULTILINE,
    ),
    _sign(rb"memray", "what memray recorded", "memray flamegraph FILE"),
    _sign(
        rb"(?:[^\n]*\n){0,50}[^\n]* NCCL (?:INFO|WARN|TRACE) ",
        "a log with messages of NCCL (NCCL_DEBUG)",
        f"what communication costs: {CAPTURE}, of every rank",
    ),
)
_BEGINNING = 1 << 16
"""Bytes of a file in which signs are searched."""
_PLAIN_TRACE = re.compile(rb'\s*\{\s*"(?:schemaVersion|traceEvents)"')
"""How traces of torch.profiler begin: they are searched for no sign."""
_PICKLED_FLIGHT_RECORDER = (b"pg_config", b"entries")
_SUFFIXES = {
    (".perfetto-trace", ".pftrace"): ForeignFile("a trace of Perfetto", _VIEW),
    (".prof", ".pprof", ".pb.gz"): ForeignFile(
        "a profile for pprof, or of cProfile", "pprof FILE, or snakeviz FILE"
    ),
    (".cpuprofile",): ForeignFile(
        "a CPU profile of V8 (Chrome, Node.js)", "open it in the browser's developer tools"
    ),
}


def foreign_file(name: str, head: bytes) -> ForeignFile | None:
    """Return what a file of another tool is; None for what is none of the known ones.

    Args:
        name: of the file, without folders.
        head: how it begins, unpacked.
    """
    if head.startswith(b"\x80"):
        return (
            ForeignFile(_FLIGHT_RECORDER, _FLIGHT_RECORDER_NEXT)
            if all(word in head for word in _PICKLED_FLIGHT_RECORDER)
            else None
        )
    if not _PLAIN_TRACE.match(head):
        beginning = head[:_BEGINNING]
        found = next((sign.file for sign in _SIGNS if sign.pattern.match(beginning)), None)
        if found is not None:
            return found
    if "tfevents" in name:
        return ForeignFile("an event file of TensorBoard", "llmtop report of the log folder reads its traces")
    return None


def foreign_by_suffix(name: str) -> ForeignFile | None:
    """Return what a file of no known content is by the end of its name; None if that does not tell."""
    return next((file for endings, file in _SUFFIXES.items() if name.endswith(endings)), None)


_CHROME = (
    (
        r"\bTotal (?:ExecuteCompiler|Frontend|Source)\b|\bbeginningOfTime\b",
        "clang -ftime-trace",
        "ClangBuildAnalyzer",
    ),
    (r"\bbazel_version\b|\bbuild_id\b|action processing", "a build by Bazel", "bazel analyze-profile FILE"),
    (r"devtools\.timeline|CrRendererMain|\bdisabled-by-default-|\bblink\b", "a browser (Chrome)", _VIEW),
    (r"/(?:job:|device:|gpu:|cpu:|host:)[^\n]*(?:Compute|Tensors)|\bOp,", "TensorFlow's timeline", _VIEW),
    (r"viztracer_metadata|\bFEE\b", "VizTracer", "vizviewer FILE"),
    (r"\b(?:GROUP_API|KERNEL_LAUNCH|COLL_API|P2P_API|PROXY)\b", "NCCL's profiler plugin", _VIEW),
)
"""Signs in categories, names and properties of Chrome trace JSON, whose program they mean, and the next step."""
_MOST_CATEGORIES = 5
_OF_TORCH = re.compile(r"schemaVersion|deviceProperties|Record Window End|PyTorch Profiler")


def foreign_chrome_trace(
    properties: str, categories: Collection[str], names: Collection[str]
) -> ForeignFile | None:
    """Return whose Chrome trace JSON without any event of PyTorch's or XLA's it is; None if it may be PyTorch's.

    Args:
        properties: the text beside the events.
        categories: of the events.
        names: of processes and of some events.
    """
    text = "\n".join((properties, *(f"{category}," for category in categories), *names))
    if _OF_TORCH.search(text):
        return None
    for sign, program, follows in _CHROME:
        if re.search(sign, text):
            return ForeignFile(f"Chrome trace JSON of {program}, not of PyTorch or XLA", follows)
    shown = ", ".join([*sorted(filter(None, categories))[:_MOST_CATEGORIES]]) or "none"
    return ForeignFile(f"Chrome trace JSON of another program (categories: {shown})", f"{_VIEW}, or {CAPTURE}")

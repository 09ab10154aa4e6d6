"""One event of XLA's profiler: the fields and arguments that matter here, whatever else it has."""

from __future__ import annotations

import msgspec

from llmtop.trace.chrome.fields import Event, Number
from llmtop.trace.chrome.parse import Parser


class XlaArgs(msgspec.Struct, gc=False):
    """Used arguments of an event; XLA writes numbers as text."""

    correlation: Number = msgspec.field(name="correlation_id", default=None)
    hlo_op: Number = None
    hlo_module: Number = None
    hlo_category: Number = None
    tf_op: Number = None
    name: Number = None
    step: Number = msgspec.field(name="step_num", default=None)
    phase: Number = msgspec.field(name="llmtop_phase", default=None)
    devices: Number = msgspec.field(name="llmtop_devices", default=None)
    run: Number = msgspec.field(name="run_id", default=None)
    device: Number = msgspec.field(name="device_ordinal", default=None)
    copy: Number = msgspec.field(name="memcpy_details", default=None)
    memset: Number = msgspec.field(name="memset_details", default=None)
    allocation: Number = msgspec.field(name="memalloc_details", default=None)
    release: Number = msgspec.field(name="memfree_details", default=None)
    residency: Number = msgspec.field(name="memory_residency_details", default=None)
    graph: Number = msgspec.field(name="cuda_graph_exec_id", default=None)


class XlaEvent(Event, gc=False):
    """One event of XLA's profiler."""

    args: XlaArgs | None = None  # type: ignore[assignment]  # other arguments than those of torch's events


XLA = Parser(XlaEvent, XlaEvent, XlaArgs)

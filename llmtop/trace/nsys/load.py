"""Read what `nsys export --type sqlite` wrote, of nsys 2023.4 and newer.

Any table and any column may be missing (nsys writes a table only when it has rows), rows come in no order, and the
file may be cut. Documented by NVIDIA under "Exporter" in the Nsight Systems user guide; times are ns.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from llmtop.errors import UnusableInput
from llmtop.format import counted, printable
from llmtop.system.inputs import DEFAULT, Limits
from llmtop.trace import model
from llmtop.trace.chrome.learn import RANGE_NAMES
from llmtop.trace.groups import distinct_values, grouped, is_among
from llmtop.trace.intervals import Ns
from llmtop.trace.nsys import nvtx_operators
from llmtop.trace.nsys.database import BLOCK_ROWS, NEVER, Database, int_or_never, printable_name
from llmtop.trace.nsys.host_stacks import STACK_TABLES, call_places, read_samples
from llmtop.trace.nsys.memory_usage import MEMORY_TABLES, read_memory
from llmtop.trace.nsys.scheduling import SCHEDULING_TABLES, read_off_cpu
from llmtop.trace.nsys.unpacked import UnpackedDatabase

_TABLES = {
    *("StringIds", "NVTX_EVENTS", "META_DATA_EXPORT", "OSRT_API", "PROFILER_OVERHEAD", "PROCESSES"),
    *(*SCHEDULING_TABLES, *STACK_TABLES, *MEMORY_TABLES),
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "DIAGNOSTIC_EVENT", "GPU_METRICS"),
    *("TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU_METRICS"),
}
"""Tables read from an export."""
_PUSH_POP, _START_END, _NVTXT_PUSH_POP, _NVTXT_START_END, _DOMAIN = 59, 60, 70, 71, 75
"""NVTX_EVENTS.eventType (ENUM_NSYS_EVENT_TYPE)."""

_METRICS = {
    "SMs Active": "sm_active",
    "SM Active": "sm_active",
    "Tensor Active": "tensor_active",
    "Tensor Active / FP16 Active": "tensor_active",
    "DRAM Read Bandwidth": "dram_read",
    "DRAM Write Bandwidth": "dram_write",
    "PCIe RX Throughput": "pcie_rx",
    "PCIe TX Throughput": "pcie_tx",
    "NVLink RX Requests User Data": "nvlink_rx",
    "NVLink TX Requests User Data": "nvlink_tx",
}
"""Names of counters in TARGET_INFO_GPU_METRICS, without their unit; they differ between chips and versions."""
_METRIC_BUCKETS = 120
_ON_HOST = 0x7FFFFFFF
"""GRAPH_TRACE.deviceId of a graph that begins on the host (CUpti_ActivityGraphTrace2)."""
_MOST_WARNINGS = 20
_USUAL_MESSAGE, _LONGEST_MESSAGE = 300, 2000
"""Characters of a message in a report, whose last sentences are left out for that, and of any part of one."""
_GRAPHICS = ("OpenGL", "Vulkan", "DX11", "DX12", "WDDM", "OpenXR")


def load(file: Path | UnpackedDatabase, source: str, limits: Limits = DEFAULT) -> model.Trace:
    """Read an SQLite export.

    Args:
        file: on a disk, or unpacked into memory.
        source: what messages and the report call it.
        limits: how much it may ask for.

    Raises:
        UnusableInput: not an SQLite file, not one of nsys, or beyond a limit.
    """
    notes: list[str] = []
    database = Database(file, source, _TABLES, notes, limits)
    try:
        known = ("StringIds", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT")
        if not any(name in known or name.startswith("CUPTI_ACTIVITY_KIND") for name in database.tables):
            raise UnusableInput(
                f"{source} is an SQLite file but not an export of nsys: none of its tables is there"
            )
        return _load(database, source, notes)
    finally:
        database.close()


def _load(database: Database, source: str, notes: list[str]) -> model.Trace:
    names = model.Names()
    kernels = database.numbers(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        dict.fromkeys(("start", "end"), NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "shortName": NEVER}
        | {"demangledName": NEVER},
    )
    copies = database.numbers(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        dict.fromkeys(("start", "end"), NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "bytes": 0, "copyKind": 0}
        | {"srcKind": model.MEMORY_UNKNOWN, "dstKind": model.MEMORY_UNKNOWN},
    )
    memsets = database.numbers(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        dict.fromkeys(("start", "end"), NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "bytes": 0},
    )
    graphs = database.numbers(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        dict.fromkeys(("start", "end"), NEVER)
        | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0, "graphId": NEVER},
    )
    calls = database.numbers(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {"start": NEVER, "end": NEVER, "globalTid": 0, "correlationId": -1, "nameId": NEVER, "callchainId": 0},
    )
    waits = database.numbers("OSRT_API", {"start": NEVER, "end": NEVER, "globalTid": 0, "nameId": NEVER})
    ids = [kernels["shortName"], kernels["demangledName"], calls["nameId"], waits["nameId"]]
    number = database.names(ids, names)
    trace = model.Trace(source=source, engine="nsys", operators_of_a_part=True, notes=notes)
    ops = [_kernels(kernels, number), _copies(copies, names), _memsets(memsets, names.number("memset"))]
    if len(graphs["start"]):
        ops.append(_graphs(graphs, names, database, ops))
    trace.ops = model.joined(ops)
    process, thread = _owner(calls["globalTid"])
    trace.calls = model.build(
        model.ApiCalls,
        {"start": calls["start"], "end": calls["end"], "process": process, "thread": thread}
        | {"name": _map(calls["nameId"], number), "correlation": calls["correlationId"]}
        | {"place": call_places(database, calls["callchainId"], names)},
    )
    process, thread = _owner(waits["globalTid"])
    trace.host = model.build(
        model.HostSpans,
        {"start": waits["start"], "end": waits["end"], "process": process, "thread": thread}
        | {"name": _map(waits["nameId"], number), "kind": np.full(len(process), model.OS_CALL)},
    )
    trace.ranges, operators = _ranges(database, names)
    trace.host = model.joined([trace.host, operators])
    overhead = database.numbers("PROFILER_OVERHEAD", {"start": NEVER, "end": NEVER})
    trace.overhead = model.Table(overhead["start"], overhead["end"])
    trace.names = names.all
    trace.samples = read_samples(database, trace, names)
    trace.memory = read_memory(database, trace)
    trace.off_cpu = read_off_cpu(database, trace)
    _describe(database, trace)
    trace.metrics = _metrics(database)
    return trace


def _map(ids: Ns, number: dict[int, int]) -> Ns:
    different, which = grouped(ids)
    return np.array([number.get(i, 0) for (i,) in different], dtype=np.int64)[which]


def _owner(global_tid: Ns) -> tuple[Ns, Ns]:
    """(pid, tid) from a serialised GlobalId: pid in bits 24 to 47, tid below."""
    return (global_tid >> 24) & 0xFFFFFF, global_tid & 0xFFFFFF


def _kernels(rows: dict[str, Ns], number: dict[int, int]) -> model.DeviceOps:
    short, full = _map(rows["shortName"], number), _map(rows["demangledName"], number)
    return model.build(
        model.DeviceOps,
        _common_columns(rows)
        | {"kind": np.full(len(short), model.KERNEL), "name": np.where(short > 0, short, full)}
        | {"full_name": np.where(full > 0, full, short)},
    )


def _copies(rows: dict[str, Ns], names: model.Names) -> model.DeviceOps:
    direction = np.where((rows["copyKind"] >= 0) & (rows["copyKind"] <= 13), rows["copyKind"], model.UNKNOWN)
    label = {d: names.number(f"memcpy {text}") for d, text in model.DIRECTIONS.items()}
    name = _map(direction, label)
    return model.build(
        model.DeviceOps,
        _common_columns(rows)
        | {"kind": np.full(len(name), model.MEMCPY), "name": name, "full_name": name, "bytes": rows["bytes"]}
        | {"direction": direction, "source_memory": _memory(rows["srcKind"])}
        | {"target_memory": _memory(rows["dstKind"])},
    )


def _memory(kinds: Ns) -> Ns:
    return np.where((kinds >= 0) & (kinds < model.MEMORY_UNKNOWN), kinds, model.MEMORY_UNKNOWN)


def _memsets(rows: dict[str, Ns], name: int) -> model.DeviceOps:
    length = len(rows["start"])
    return model.build(
        model.DeviceOps,
        _common_columns(rows)
        | {"kind": np.full(length, model.MEMSET), "bytes": rows["bytes"]}
        | {"name": np.full(length, name), "full_name": np.full(length, name)},
    )


def _graphs(
    rows: dict[str, Ns], names: model.Names, database: Database, ops: list[model.DeviceOps]
) -> model.DeviceOps:
    """CUDA graphs that were traced as a whole, as nsys does by default."""
    common = _common_columns(rows)
    if (rows["deviceId"] == _ON_HOST).any():
        # A graph whose first node runs on the host has no device of its own: its process has one, as a rule.
        others = model.joined(ops)
        device = {
            int(pid): int(others.device[others.process == pid].min()) for pid in distinct_values(others.process)
        }
        guess = np.array([device.get(pid, 0) for pid in common["process"].tolist()], dtype=np.int64)
        common["device"] = np.where(rows["deviceId"] == _ON_HOST, guess, rows["deviceId"])
    different = distinct_values(rows["graphId"]).tolist()
    label = {i: names.number("CUDA graph" if i == NEVER else f"CUDA graph {i}") for i in different}
    database.check_names(names)
    name = _map(rows["graphId"], label)
    return model.build(
        model.DeviceOps, common | {"kind": np.full(len(name), model.GRAPH), "name": name, "full_name": name}
    )


def _common_columns(rows: dict[str, Ns]) -> dict[str, Ns]:
    # CUPTI writes 0 and 0 where the time is unknown.
    timeless = (rows["start"] == 0) & (rows["end"] == 0)
    return {
        "start": np.where(timeless, NEVER, rows["start"]),
        "end": rows["end"],
        "device": rows["deviceId"],
        "process": _owner(rows["globalPid"])[0],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
    }


def _ranges(database: Database, names: model.Names) -> tuple[model.Ranges, model.HostSpans]:
    """NVTX ranges, and the operators among them that PyTorch marked.

    A name stands in `text`, as PyTorch's do, or is registered and stands in StringIds under `textId`.
    """
    table = "NVTX_EVENTS"
    columns = {"start": NEVER, "end": NEVER, "eventType": 0, "globalTid": 0, "textId": NEVER, "domainId": 0}
    kinds = f"WHERE eventType IN ({_PUSH_POP}, {_START_END}, {_NVTXT_PUSH_POP}, {_NVTXT_START_END})"
    none = model.empty(model.Ranges), model.empty(model.HostSpans)
    if not {"start", "eventType"} <= database.columns.get(table, set()):
        return none
    rows = database.numbers(table, {"rowid": 0} | columns, kinds)
    if not len(rows["start"]):
        return none
    registered: dict[int, tuple[int, int]] = {}

    def plain(number: int, text: str) -> str:
        return _plain_range_name(text, number, registered, names)

    number = database.names([rows["textId"]], names, plain)
    name = _map(rows["textId"], number)
    texts, marked = _texts(database, kinds, names)
    for row in np.flatnonzero(is_among(rows["textId"], list(registered))).tolist() if registered else ():
        marked[int(rows["rowid"][row])] = registered[int(rows["textId"][row])]
    if texts:
        name = np.where(name > 0, name, _map(rows["rowid"], texts))
    process, thread = _owner(rows["globalTid"])
    push_pop = is_among(rows["eventType"], (_PUSH_POP, _NVTXT_PUSH_POP))
    end = np.where(rows["end"] == NEVER, model.OPEN, rows["end"])
    domain = _domains(database, process, rows["domainId"], names)
    style = np.where(push_pop, model.PUSH_POP, model.START_END).astype(np.int8)
    ranges = model.build(
        model.Ranges,
        {"start": rows["start"], "end": end, "process": process, "thread": thread}
        | {"name": name, "domain": domain, "style": style},
    )
    if not marked:
        return ranges, none[1]
    at = np.flatnonzero(is_among(rows["rowid"], np.fromiter(marked, dtype=np.int64, count=len(marked))))
    inputs, sequence = (
        np.array([marked[row] for row in rows["rowid"][at].tolist()], dtype=np.int64).reshape(-1, 2).T
    )
    operators = model.build(
        model.HostSpans,
        {"start": rows["start"][at], "end": end[at], "process": process[at], "thread": thread[at]}
        | {"name": name[at], "kind": np.full(len(at), model.OPERATOR), "inputs": inputs, "sequence": sequence},
    )
    others = np.ones(len(end), dtype=bool)
    others[at] = False
    return ranges.select(others), operators.select(operators.end != model.OPEN)


def _texts(
    database: Database, kinds: str, names: model.Names
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """(number of the name by rowid, numbers of inputs and sequence by rowid for operators that PyTorch marked)."""
    table = "NVTX_EVENTS"
    texts: dict[int, int] = {}
    marked: dict[int, tuple[int, int]] = {}
    if "text" not in database.columns[table]:
        return texts, marked
    query = f"SELECT rowid, text FROM {table} {kinds} AND text IS NOT NULL"
    for row, text in database.stream(query, table):
        texts[row] = names.number(_plain_range_name(printable_name(text), row, marked, names))
        if not len(texts) % BLOCK_ROWS:
            database.check_names(names)
    database.check_names(names)
    return texts, marked


def _plain_range_name(text: str, row: int, marked: dict[int, tuple[int, int]], names: model.Names) -> str:
    """Return the name of a range without what PyTorch adds to that of an operator, which is noted in `marked`."""
    operator = nvtx_operators.parse_operator_range(text)
    if operator is None:
        return text
    if not RANGE_NAMES.match(operator.name):
        marked[row] = (names.number(operator.inputs), operator.sequence)
    return operator.name


def _domains(database: Database, process: Ns, domain: Ns, names: model.Names) -> Ns:
    """Domain ids count within a process; the name comes with the event that created the domain."""
    query = f"SELECT globalTid, domainId, text FROM NVTX_EVENTS WHERE eventType = {_DOMAIN} AND text IS NOT NULL"
    known = {"domainId", "text", "globalTid"} <= database.columns["NVTX_EVENTS"]
    created = database.stream(query, "NVTX_EVENTS") if known else ()
    found = {
        (((int_or_never(tid) >> 24) & 0xFFFFFF) << 32) + int_or_never(number): names.number(printable_name(text))
        for tid, number, text in created
    }
    return _map((process << 32) + domain, found)


def _describe(database: Database, trace: model.Trace) -> None:
    version = database.rows(
        "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PRODUCT_VERSION'", "META_DATA_EXPORT"
    )
    trace.version = printable(str(version[0][0]), 40) if version else ""
    began = database.rows(
        "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SESSION_START_TIME"
    )
    if began and isinstance(began[0][0], int) and 0 < began[0][0] < 1 << 62:
        trace.origin_unix_ns = began[0][0]
    columns = database.columns.get("TARGET_INFO_GPU", set())
    wanted = ("id", "name", "uuid", "memoryBandwidth")
    picked = ", ".join(column if column in columns else "NULL" for column in wanted)
    for row in database.rows(f"SELECT {picked} FROM TARGET_INFO_GPU", "TARGET_INFO_GPU"):
        number, name, uuid, bandwidth = row
        if isinstance(number, int):
            trace.gpus[number] = model.TracedGpu(
                number=number,
                name=printable(str(name), 100) if name else None,
                uuid=printable(str(uuid), 100) if uuid else None,
                dram_bytes_per_s=float(bandwidth) if isinstance(bandwidth, int) and bandwidth > 0 else None,
            )
    # deviceId is CUDA's number, which counts what a process can see; this table has the GPU.
    query = "SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE"
    for pid, device, number in database.rows(query, "TARGET_INFO_CUDA_DEVICE"):
        if isinstance(pid, int) and isinstance(device, int) and isinstance(number, int) and number in trace.gpus:
            trace.gpu_of[pid, device] = trace.gpus[number]
    for pid, name in database.rows("SELECT pid, name FROM PROCESSES", "PROCESSES"):
        if isinstance(pid, int) and name:
            trace.process_names[pid] = printable(str(name), 200)
    _warnings(database, trace)


def _warnings(database: Database, trace: model.Trace) -> None:
    """Add nsys's own warnings about the capture, except its routine remarks at every stop."""
    query = "SELECT DISTINCT text FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3)"
    routine = ("Not all ", "No NVTX events", "No CUDA events", *(f"No {name} events" for name in _GRAPHICS))
    said = [str(text) for (text,) in database.rows(query, "DIAGNOSTIC_EVENT")]
    said = [text for text in said if not text.startswith(routine)]
    trace.notes += [f"nsys reports: {_shortened(text)}" for text in said[:_MOST_WARNINGS]]
    if len(said) > _MOST_WARNINGS:
        trace.notes.append(f"nsys has {counted(len(said) - _MOST_WARNINGS, 'more message')}")


def _shortened(message: str) -> str:
    """Return a message in one line, without the sentences that are too many."""
    text = " ".join(printable(message, _LONGEST_MESSAGE).replace("·", " ").split())
    sentences = re.split(r"(?<=[.?]) ", text)
    while len(sentences) > 1 and len(" ".join(sentences)) > _USUAL_MESSAGE:
        sentences.pop()
    return " ".join(sentences)


def _metrics(database: Database) -> list[model.SampledMetric]:
    """GPU metrics, averaged by SQLite into buckets: there can be millions of samples."""
    if not {"typeId", "metricId", "timestamp", "value"} <= database.columns.get("GPU_METRICS", set()):
        return []
    described = database.rows(
        "SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS", "TARGET_INFO_GPU_METRICS"
    )
    wanted = {}
    for kind, metric, text in described:
        label, _, unit = str(text).partition(" [")
        countable = isinstance(kind, int) and isinstance(metric, int)
        if countable and label in _METRICS and unit.startswith("Throughput"):
            wanted[(kind, metric)] = _METRICS[label]
    edges = database.rows("SELECT min(timestamp), max(timestamp) FROM GPU_METRICS", "GPU_METRICS")
    low, high = (int_or_never(edge) for edge in edges[0]) if edges else (0, 0)
    if not wanted or high <= low:
        return []
    width = (high - low + 1) / _METRIC_BUCKETS
    values = {key: np.full(_METRIC_BUCKETS, np.nan) for key in wanted}
    ids = ", ".join(sorted({str(metric) for _, metric in wanted}))
    query = (
        f"SELECT typeId, metricId, CAST((timestamp - {low}) / {width} AS INTEGER), avg(value) FROM GPU_METRICS "
        f"WHERE metricId IN ({ids}) GROUP BY 1, 2, 3"
    )
    for kind, metric, bucket, mean in database.stream(query, "GPU_METRICS"):
        if (kind, metric) in values and 0 <= bucket < _METRIC_BUCKETS and isinstance(mean, float):
            values[(kind, metric)][bucket] = mean
    # The low byte of typeId numbers the GPU.
    return [
        model.SampledMetric(
            device=kind & 0xFF, name=name, start=low, bucket_ns=width, values=values[(kind, metric)]
        )
        for (kind, metric), name in wanted.items()
    ]

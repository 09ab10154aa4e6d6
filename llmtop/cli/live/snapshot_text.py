"""A snapshot as plain text: `llmtop --once`."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Iterable

from collectors.earlier_steps import CLOSE_SECONDS, EARLIER_APART_SECONDS, EARLIER_SECONDS
from llmtop import format as fmt
from llmtop.model import gpu_busy, ownership
from llmtop.model.links import total_rates
from llmtop.model.run_window import window_label
from llmtop.model.signal_text import value_text
from llmtop.model.signals import ONCE_ITEMS, Signal
from llmtop.model.snapshot import Alert, Gpu, Host, Job, Phase, Process, Rank, Snapshot, Window
from llmtop.naming.own_phases import OUTSIDE, phase_label

MAX_PROCESSES = 20
"""Most listed processes; of more, only the number is given."""
_FIRST_JUDGED_SECONDS = 3.0
"""Rules judge a training from two steps and a second after the first known step on."""
_COLUMNS = (
    ("PID", 8, True),
    ("user", 9, False),
    ("GPU", 3, True),
    ("GPU mem", 9, True),
    ("SM", 5, True),
    ("CPU", 6, True),
    ("RSS", 9, True),
)
"""Columns of the processes, before the command: title, cells, and True if it is aligned to the right."""


def render(snapshot: Snapshot, width: int = 80) -> str:
    """Write everything that is known at this instant, no line longer than `width`; a dash is an absent value."""
    blocks = [_host(snapshot, width)]
    blocks += [_gpu(gpu, snapshot, width) for gpu in snapshot.gpus]
    blocks += _trainings(snapshot, width)
    if snapshot.processes:
        blocks.append(_processes(snapshot))
    if snapshot.alerts:
        blocks.append(["Alerts", *(line for alert in snapshot.alerts for line in _alert(alert, snapshot, width))])
    if snapshot.host.notes:
        blocks.append(["Notes", *(line for note in snapshot.host.notes for line in _text(note, width))])
    return "\n\n".join("\n".join(fmt.printable(line, width) for line in lines) for lines in blocks) + "\n"


def _head(left: str, right: str, width: int) -> str:
    """`left` and `right` at the two ends of a line; `right` goes if both do not fit."""
    if len(left) + 2 + len(right) > width:
        return left
    return left + right.rjust(width - len(left))


def _items(items: Iterable[str], width: int, indent: str = "  ") -> list[str]:
    """Set items in lines, two spaces between them, breaking only between items where that is possible."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= width:
            lines[-1] += "  " + item
        else:
            lines.append(indent + item)
    return lines


def _text(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(fmt.printable(text), width, initial_indent=indent, subsequent_indent=indent)


def _used_of_total(used: str, total: str) -> str:
    return f"{used} of {total}"


def _host(snapshot: Snapshot, width: int) -> list[str]:
    host: Host = snapshot.host
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(snapshot.time))
    name = "llmtop on " + fmt.printable(host.name) + ("  REPLAY" if snapshot.source == "replay" else "")
    cores = f" of {len(host.cpu_per_core_pct)} cores" if host.cpu_per_core_pct else ""
    if cores and host.cpus_allowed is not None:
        cores += f", {host.cpus_allowed:.3g} allowed"
    loads = " ".join(fmt.number(load, 2) for load in (host.load_1m, host.load_5m, host.load_15m))
    items = [
        f"CPU {fmt.percent(host.cpu_pct)}{cores}",
        f"load {loads}",
        f"memory {_used_of_total(fmt.size(host.memory_used_bytes), fmt.size(host.memory_total_bytes))}",
        f"swap {_used_of_total(fmt.size(host.swap_used_bytes), fmt.size(host.swap_total_bytes))}",
        f"disk read {fmt.rate(host.disk_read_bytes_per_s)} write {fmt.rate(host.disk_write_bytes_per_s)}",
        *_links(host),
        f"network rx {fmt.rate(host.net_rx_bytes_per_s)} tx {fmt.rate(host.net_tx_bytes_per_s)}",
        f"driver {fmt.printable(host.driver_version or fmt.DASH)}",
        f"CUDA {fmt.printable(host.cuda_version or fmt.DASH)}",
    ]
    return [_head(name, stamp, width), *_items(items, width)]


def _links(host: Host) -> Iterable[str]:
    """Rates of the InfiniBand and RoCE ports, and the ports that are not up."""
    if not host.links:
        return
    received, sent = total_rates(host.links)
    yield f"NIC rx {fmt.rate(received)} tx {fmt.rate(sent)}"
    for link in host.links:
        if link.state not in (None, "ACTIVE"):
            yield f"{fmt.printable(link.device)} port {link.port} {fmt.printable(link.state)}"


def _gpu(gpu: Gpu, snapshot: Snapshot, width: int) -> list[str]:
    kind = "MIG" if gpu.mig_parent_uuid else "GPU"
    lines = [_head(f"{kind} {gpu.number}  {fmt.printable(gpu.name)}", fmt.printable(gpu.uuid), width)]
    if gpu.error is not None:
        lines += _text(f"error: {gpu.error}", width)
    if whose := ownership.owner_text(gpu.uuid, snapshot):
        lines += _text(whose, width)
    return lines + _items(_signals(gpu), width)


def _signals(gpu: Gpu) -> Iterable[str]:
    """Return the signals that the GPU's maker gives; those that share a name are one item."""
    items: dict[str, str] = {}
    for signal, item in ONCE_ITEMS:
        name = item.names.get(gpu.vendor)
        if name is None or (item.optional and getattr(gpu, signal.field) is None):
            continue
        part = f" {item.part}" if item.part else ""
        suffix = _SUFFIXES.get(signal.field, _no_suffix)(gpu)
        items[name] = f"{items.get(name, name)}{part} {_signal(signal, gpu)}{suffix}"
    return items.values()


def _signal(signal: Signal, gpu: Gpu) -> str:
    value = getattr(gpu, signal.field)
    if not signal.total:
        return value_text(signal.unit, value)
    total = value_text(signal.unit, getattr(gpu, signal.total))
    return _used_of_total(fmt.number(value) if signal.unit == "MHz" else value_text(signal.unit, value), total)


def _reasons(gpu: Gpu) -> str:
    return "" if not gpu.clock_event_reasons else f" ({', '.join(gpu.clock_event_reasons)})"


def _activity_source(gpu: Gpu) -> str:
    return " (by DCGM)" if gpu.activity_source == "dcgm" else ""


def _pcie_link(gpu: Gpu) -> str:
    return "" if gpu.pcie_gen is None or gpu.pcie_width is None else f" (gen {gpu.pcie_gen} x{gpu.pcie_width})"


def _no_suffix(_: Gpu) -> str:
    return ""


_SUFFIXES: dict[str, Callable[[Gpu], str]] = {
    "sm_clock_mhz": _reasons,
    "sm_active_pct": _activity_source,
    "pcie_tx_bytes_per_s": _pcie_link,
}
"""Additions to a signal's value, by field."""


def _trainings(snapshot: Snapshot, width: int) -> list[list[str]]:
    """Job by job, what it comes to and then its ranks; a process on its own is a block, too."""
    blocks = []
    for job in snapshot.jobs:
        if job.ranks_seen > 1 or (job.world_size or 1) > 1:
            blocks.append(_job(job, width))
        blocks += [_rank(rank, snapshot, width) for rank in snapshot.ranks if rank.job == job.name]
    named = {job.name for job in snapshot.jobs}
    return blocks + [_rank(rank, snapshot, width) for rank in snapshot.ranks if rank.job not in named]


def _job(job: Job, width: int) -> list[str]:
    of = "" if job.world_size is None else f" of {job.world_size}"
    items = [
        f"ranks seen {job.ranks_seen}{of}",
        f"{job.kind} {fmt.number(job.step)}",
        f"{fmt.count(job.tokens_per_s)} tokens/s",
        f"{fmt.count(job.samples_per_s)} samples/s",
        f"{fmt.number(job.steps_per_s, 2)} {job.kind}s/s",
    ]
    items += [f"launcher {job.launcher}"] if job.launcher else []
    items += [f"run id {fmt.printable(job.run_id, 40)}"] if job.run_id else []
    items += [f"SLURM job {fmt.printable(job.slurm_job_id)}"] if job.slurm_job_id else []
    hosts = fmt.printable(", ".join(job.hosts))
    return [_head(f"Job {fmt.printable(job.name)}  {job.state}", hosts, width), *_items(items, width)]


def _rank(rank: Rank, snapshot: Snapshot, width: int) -> list[str]:
    name = "Inference" if rank.inference else "Training"
    name = name if rank.rank is None else f"Rank {rank.rank} of {rank.world_size or fmt.DASH}"
    gpu = next((gpu.number for gpu in snapshot.gpus if gpu.uuid == rank.gpu_uuid), fmt.DASH)
    what = "request" if rank.kind == "request" else "step"
    total = "" if rank.total_steps is None else f" of {rank.total_steps}"
    items = [
        f"{what} {fmt.number(rank.step)}{total}",
        *([] if rank.inference else [f"left {fmt.duration(rank.eta_seconds)}"]),
        f"last {fmt.duration(rank.step_seconds)}",
        f"p50 {fmt.duration(rank.step_seconds_p50)}",
        f"p95 {fmt.duration(rank.step_seconds_p95)}",
        f"p99 {fmt.duration(rank.step_seconds_p99)}",
        *_requests(rank),
        f"{fmt.count(rank.tokens_per_s)} tokens/s",
        f"{fmt.count(rank.samples_per_s)} samples/s",
        f"{fmt.number(rank.steps_per_s, 2)} {what}s/s",
        *([] if rank.inference else [f"MFU {'~' if rank.mfu_estimated else ''}{fmt.percent(rank.mfu_pct, 1)}"]),
        f"GPU idle {_idle_text(rank)}",
        f"memory allocated {fmt.size(rank.memory_allocated_bytes)}",
        f"reserved {fmt.size(rank.memory_reserved_bytes)}",
    ]
    items += [f"{rank.accumulation_steps} batches per step"] if rank.accumulation_steps else []
    items += [f"{fmt.printable(key, 40)} {_metric(value)}" for key, value in rank.metrics.items()]
    items += [f"lost {rank.lost} {what}s"] if rank.lost else []
    if rank.overhead_seconds is not None:
        usual = rank.step_seconds_mean or rank.step_seconds_p50
        items.append(f"llmtop costs {fmt.overhead(rank.overhead_seconds, usual)}")
    lines = [_head(f"{name}  {rank.state}", f"pid {rank.pid}  GPU {gpu}", width), *_items(items, width)]
    if rank.phases:
        over = "" if rank.window_seconds is None else f" over the last {fmt.duration(rank.window_seconds)}"
        lines.append(f"  phases, mean per step{over}: host clock / {_gpus_clock(rank)}")
        outside = rank.outside_seconds
        rest = () if outside is None else (Phase(name=OUTSIDE, host_seconds=outside),)
        lines += _items((_phase(phase) for phase in (*rank.phases, *rest)), width, "    ")
        causes = (
            f"{fmt.printable(cause.what, 60)} {fmt.duration(cause.seconds)}" for cause in rank.outside_causes
        )
        lines += _items(causes, width, "      ")
    windows = {window_label(rank, window): window for window in rank.windows[1:]}  # two may be of the same time
    for label, window in windows.items():
        lines += _items(_window(window, label), width)
    for note in (rank.mfu_note if rank.mfu_pct is None or rank.mfu_estimated else None, rank.note):
        lines += _text(note, width) if note else []
    return lines


def _idle_text(rank: Rank) -> str:
    """Return the idle share of its GPU and the source."""
    known = rank.gpu_busy_pct is not None
    return gpu_busy.idle_text(rank) + (f" (by {gpu_busy.source_name(rank.gpu_busy_source)})" if known else "")


def _gpus_clock(rank: Rank) -> str:
    """Name of the second figure of a phase: it includes pauses where there may be any."""
    return "GPU clock, pauses in phases included" if gpu_busy.has_phase_bounds(rank) else "GPU clock"


def _requests(rank: Rank) -> Iterable[str]:
    """Figures of requests to a language model, from hooks; empty for other processes."""
    for name, values in (
        ("TTFT", (rank.ttft_seconds_p50, rank.ttft_seconds_p95, rank.ttft_seconds_p99)),
        ("TPOT", (rank.tpot_seconds_p50, rank.tpot_seconds_p95, rank.tpot_seconds_p99)),
    ):
        if values[0] is not None:
            figures = zip(("p50", "p95", "p99"), values, strict=True)
            yield f"{name} " + " ".join(f"{pct} {fmt.duration(value)}" for pct, value in figures)
    if rank.tokens_in_per_s is not None:
        yield f"{fmt.count(rank.tokens_in_per_s)} tokens/s in"
    if rank.tokens_out_per_s is not None:
        yield f"{fmt.count(rank.tokens_out_per_s)} tokens/s out"
    if rank.inference and rank.batch is not None:
        yield f"batch {fmt.figure(rank.batch)}"


def _window(window: Window, label: str) -> Iterable[str]:
    yield f"{label}:"
    yield f"mean {fmt.duration(window.step_seconds)}"
    yield f"p50 {fmt.duration(window.step_seconds_p50)}"
    yield f"p95 {fmt.duration(window.step_seconds_p95)}"
    if window.outside_seconds is not None:
        yield f"untimed {fmt.duration(window.outside_seconds)}"
    if window.tokens_per_s is not None:
        yield f"{fmt.count(window.tokens_per_s)} tokens/s"


def _metric(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else fmt.figure(value)


def _phase(phase: Phase) -> str:
    return (
        f"{fmt.printable(phase_label(phase.name), 40)} {fmt.duration(phase.host_seconds)} / "
        f"{fmt.duration(phase.gpu_seconds)}"
    )


def _processes(snapshot: Snapshot) -> list[str]:
    indices = {gpu.uuid: gpu.number for gpu in snapshot.gpus}
    lines = [_cells([title for title, _, _ in _COLUMNS], "command")]
    lines += [
        _process(process, indices.get(process.gpu_uuid or "", fmt.DASH))
        for process in snapshot.processes[:MAX_PROCESSES]
    ]
    more = len(snapshot.processes) - MAX_PROCESSES
    return lines + ([f"  and {more} more"] if more > 0 else [])


def _process(process: Process, gpu: str) -> str:
    cells = [
        str(process.pid),
        fmt.printable(process.user or fmt.DASH, 9),
        gpu,
        fmt.size(process.gpu_mem_bytes),
        fmt.percent(process.gpu_sm_pct),
        fmt.percent(process.cpu_pct),
        fmt.size(process.rss_bytes),
    ]
    program, _, arguments = (process.command or fmt.DASH).partition(" ")
    return _cells(cells, f"{program.rsplit('/', 1)[-1]} {arguments}")


def _cells(cells: list[str], command: str) -> str:
    columns = zip(cells, _COLUMNS, strict=True)
    return " ".join(fmt.pad(cell, width, right=right) for cell, (_, width, right) in columns) + f"  {command}"


def _alert(alert: Alert, snapshot: Snapshot, width: int) -> list[str]:
    where = [f"GPU {gpu.number}" for gpu in snapshot.gpus if gpu.uuid == alert.gpu]
    where += [] if alert.pid is None else [f"pid {alert.pid}"]
    since = fmt.duration(max(0.0, snapshot.time - alert.since))
    if _is_older_than_known(alert, snapshot):
        since = f"at least {since}"
    lines = _text(f"{alert.severity}: {' '.join([alert.id, *where])}, for {since}: {alert.summary}", width)
    return lines + (_text(f"next: {alert.next}", width, "    ") if alert.next else [])


def _is_older_than_known(alert: Alert, snapshot: Snapshot) -> bool:
    """Return True if the alert holds since the first step that is known of its process, and that is not the first
    of all."""
    steps = next((rank.new_steps for rank in snapshot.ranks if rank.pid == alert.pid), ())
    oldest = min(steps, key=lambda step: step.started_at, default=None)
    if oldest is None or oldest.index <= 1:
        return False
    begun = max(oldest.started_at, snapshot.time - EARLIER_SECONDS)
    apart = 1 if begun >= snapshot.time - CLOSE_SECONDS else EARLIER_APART_SECONDS
    return alert.since <= begun + _FIRST_JUDGED_SECONDS + 2 * (apart - 1)

"""Wording of a cost of loading: one sentence with its numbers, and the advice."""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec.structs import replace

from llmtop.format import duration, percent_text, rate
from llmtop.model.loading_causes import CAUSE_NAMES
from llmtop.model.snapshot import LoadingCost

COST_NAMES = {
    **CAUSE_NAMES,
    "start": CAUSE_NAMES["worker_starts"],
    "own": "code of the script",
    "unseen": "code whose stacks cannot be read",
}
"""Names of the costs of loading, by their cause; "start", "own" and "unseen" are parts of a share."""
_SOME_BYTES_PER_S = 1e6
"""Less comes from storage by the way: modules that are imported, a checkpoint's list."""
_FULL = 0.9
"""Share of the CPUs in use from which the job itself uses all: the rest is scheduling."""
_MOST_PCT, _LEAST_PCT = 50.0, 10.0
_STORAGE = ("disk", "network")
_DO = {
    "decode": "decode once and store the result; decode on the GPU (nvJPEG, DALI), or use a "
    "faster decoder (torchvision.io, turbojpeg, Pillow-SIMD)",
    "tokenize": "tokenize once and store the ids, or tokenize whole batches with a fast tokenizer",
    "collate": "bring the samples to one size beforehand; stack tensors once into a buffer, not Python lists",
    "collate_fn": "do that work once beforehand and store the result, or do it in the dataset's __getitem__; "
    "leave only padding and stacking in the collate function",
    "disk": "read fewer and larger files (shards), from local NVMe or from memory (cache, tmpfs)",
    "network": "copy the data to this machine, read larger files, and prefetch several at once",
    "lock": "give each worker its own file handle or connection, or hold the shared lock for a shorter time",
    "gil": "move the work into worker processes: all threads of a process share Python's lock",
    "slow_worker": "check the samples of that worker, or pass in_order=False to the DataLoader (PyTorch 2.6)",
    "cpu": "run fewer processes on these CPUs, or give the job more CPUs",
    "too_few_workers": "use more DataLoader workers",
    "sleep": "remove the sleep from the code that makes a batch; if it limits a rate, raise that limit",
    "file": "pack small files into few large ones (shards), or keep the samples in memory",
    "transfer": "return only what the step uses, as tensors: they go through shared memory, other objects are "
    "pickled and copied",
    "worker_threads": "call torch.set_num_threads(1) in worker_init_fn, or set OMP_NUM_THREADS=1 "
    "(cv2.setNumThreads(0)): the threads of all workers share the CPUs",
    "own_code": "make that code faster, or run it once beforehand and store the result",
    "worker_starts": "make the DataLoader once, with persistent_workers=True: its workers then start once and not "
    "in each epoch; make what each does first faster (worker_init_fn, imports, opening the dataset)",
}


@dataclass(frozen=True)
class Circumstances:
    """Facts of the loading beside its cost that change a sentence or its advice."""

    slow_pid: int | None = None
    """Pid of the slow worker."""
    cpu_wait_pct: float = 0.0
    """Time in which a thread that makes batches waited for a CPU, in percent of the window; the mean of them."""
    is_queueing: bool = False
    """True if that is a large part of the time in which they want one."""
    cpus: float = 0.0
    """CPUs that all threads of the training and of its workers had."""
    wanted_cpus: float = 0.0
    """The same with their waits for a CPU."""
    cpus_are_busy: bool = False
    """True if a worker of more would find no CPU."""
    by_itself: bool = False
    """True if the training's own thread makes what it waits for."""
    by_torch: bool = False
    """True if that thread is in a DataLoader of torch."""
    idle_pct: float | None = None
    """Idle time of workers that have time left and are waited for all the same, in percent; None for others."""
    started: int = 0
    """Workers that were started while samples were taken."""


def sentence(cost: LoadingCost, known: Circumstances) -> str:
    """Return the sentence.

    Args:
        cost: all but the sentence.
        known: what else is known of the loading.
    """
    starts = ""
    if known.started:
        were = "workers were" if known.started > 1 else "worker was"
        starts = f"; {known.started} {were} started anew during the samples"
    return f"Loader: {_statement(cost, known)}{starts}{_lack_of_cpus(cost, known)}."


def _statement(cost: LoadingCost, known: Circumstances) -> str:
    """Return the cause with its share and its place."""
    who = _threads_text(cost, known)
    at = f" in {cost.place}" if cost.place else ""
    share = percent_text(cost.share_pct) if cost.share_pct is not None else ""
    if cost.cause == "slow_worker":
        return (
            f"1 of {cost.workers} workers (pid {known.slow_pid}) is slower than the others, which wait while it "
            f"runs{at}"
        )
    if cost.cause in ("cpu", "worker_threads"):
        own = f"; threads of libraries in the workers take most of the CPU time{at}"
        lack = f"{who} waited {percent_text(min(known.cpu_wait_pct, 100.0))} of the time for a CPU{_cores(cost)}"
        return lack + (own if cost.cause == "worker_threads" else "")
    if cost.cause == "too_few_workers":
        are = "are all" if cost.workers > 1 else "is"
        few = f"{who} prepares the batches" if known.by_itself or not cost.workers else f"{who} {are} busy"
        return f"too few workers; {few}, and {share} of the time goes to {_code(cost)}{at}"
    if cost.cause == "own_code":
        cores = "" if cost.cores is None else f"{cost.cores:g} "
        fills = cost.cores is not None and known.cpus >= _FULL * cost.cores
        return f"{share} of the time goes to {_code(cost)} ({who}{at})" + (
            f", which uses all {cores}CPUs" if fills else ""
        )
    if cost.cause == "unknown":
        return _no_cause(cost, known, at)
    library = f" by the library {cost.library}" if cost.library else ""
    reads = ""
    if cost.cause in ("disk", "file") and cost.read_bytes_per_s is not None:
        reads = (
            f"; {rate(cost.read_bytes_per_s)} come from storage"
            if _is_from_storage(cost) or cost.cause == "disk"
            else "; they are in memory"
        )
    return f"{share} of the time goes to {COST_NAMES[cost.cause]}{library} ({who}{at}){reads}"


def _no_cause(cost: LoadingCost, known: Circumstances, at: str) -> str:
    """Return what is known where no cause is."""
    most = ", ".join(
        f"{_work_name(name, cost)} {percent_text(value)}" for name, value in list(cost.shares.items())[:3]
    )
    if known.idle_pct is not None:
        are = "workers are" if cost.workers > 1 else "worker is"
        idle = f"the {cost.workers} {are} idle {percent_text(known.idle_pct)} of the time"
        return f"no cause found; {idle}" + (f", and otherwise: {most}{at}" if most else "")
    none = "no certain cause" if max(cost.shares.values(), default=0.0) > _MOST_PCT else "no single cause"
    return f"{none}; {most or 'no stack sample shows the preparation of a batch'}{at}"


def _threads_text(cost: LoadingCost, known: Circumstances) -> str:
    """Return which threads make the batches."""
    if known.by_itself or not cost.workers:
        without = ", num_workers=0" if known.by_torch and not cost.workers else ""
        return f"the training process itself{without}"
    return f"{cost.workers} workers" if cost.workers > 1 else "1 worker"


def _lack_of_cpus(cost: LoadingCost, known: Circumstances) -> str:
    """Return how long these threads wait for a CPU and who has it, as a clause; "" where they do not."""
    if not known.is_queueing or known.cpu_wait_pct < _LEAST_PCT or cost.cause in ("cpu", "worker_threads"):
        return ""
    waits = f"; a CPU is waited for {percent_text(min(known.cpu_wait_pct, 100.0))} of the time"
    if cost.cores is None:
        return waits
    if known.cpus < _FULL * cost.cores:
        return f"{waits}: other programs use the CPUs (the job uses {known.cpus:.1f} of {cost.cores:g})"
    return f"{waits}: the job wants {known.wanted_cpus:.1f} CPUs and has {cost.cores:g}"


def advice_of(cost: LoadingCost, known: Circumstances) -> str:
    """Return the advice with the largest possible saving.

    Args:
        cost: all but the advice.
        known: what else is known of the loading.
    """
    parts = [_DO[cost.cause]] if cost.cause in _DO else []
    if known.started and cost.cause != "worker_starts":
        parts.append("make the DataLoader once, with persistent_workers=True, so that workers do not start anew")
    if known.idle_pct is not None and cost.cause == "unknown":
        parts.append("raise prefetch_factor: workers that have time left and are waited for deliver in bursts")
    if known.by_itself and known.by_torch and not cost.workers:
        parts.append(
            "set num_workers to 1 or more: a worker prepares batches while the training computes, if it gets a CPU"
            if cost.workers_needed is None
            else _workers(cost)
        )
    elif known.by_itself and known.by_torch:
        parts.append("more workers do not help: this code runs in the training process")
    elif known.cpus_are_busy:
        parts.append("more workers do not help: all CPUs are busy")
    elif cost.workers_needed is not None and cost.cause not in ("cpu", "worker_threads"):
        parts.append(_workers(cost))
    if cost.wait_pct is not None and (parts or cost.looks):
        most = f"{percent_text(cost.wait_pct)} of the step"
        if cost.save_seconds is not None:
            most = f"{duration(cost.save_seconds)} ({percent_text(cost.wait_pct)}) of the step"
        parts.append(f"this can save up to {most}")
    return "; ".join(parts)


def _is_from_storage(cost: LoadingCost) -> bool:
    """Return True if more than some bytes come from storage, as far as the kernel reports it."""
    return cost.read_bytes_per_s is not None and cost.read_bytes_per_s >= _SOME_BYTES_PER_S


def _work_name(name: str, cost: LoadingCost) -> str:
    """Return the name of a kind of work; of files with the origin of their bytes, as far as the kernel reports
    it."""
    if name != "file" or cost.read_bytes_per_s is None:
        return COST_NAMES[name]
    origin = f"{rate(cost.read_bytes_per_s)} from storage" if _is_from_storage(cost) else "from memory"
    return f"{COST_NAMES[name]} ({origin})"


def _code(cost: LoadingCost) -> str:
    """Return the origin of the code that no table lists."""
    return f"code of the library {cost.library}" if cost.library else "code of the script"


def _workers(cost: LoadingCost) -> str:
    now = f"(now {cost.workers})"
    if not 0 < (cost.workers_needed or 0) <= cost.workers:
        return _more_workers(cost, now)
    bursts = f"raise prefetch_factor, if the {cost.workers} workers make enough batches but in bursts"
    if cost.workers_needed_most is not None and cost.workers_needed_most <= cost.workers:
        return bursts
    return f"{bursts}; or {_more_workers(replace(cost, workers_needed=cost.workers + 1), now)}"


def _more_workers(cost: LoadingCost, now: str) -> str:
    if cost.cause in _STORAGE or (cost.cause == "file" and _is_from_storage(cost)):
        source = "server" if cost.cause == "network" else "storage"
        return (
            f"try num_workers={2 * max(cost.workers, 1)} {now}: how much the {source} can serve at once is not "
            f"known; without a limit {_range_text(cost)} would keep up"
        )
    if cost.cause == "sleep":
        return f"set num_workers to {_range_text(cost)} {now}, if each may sleep on its own"
    if cost.cores is None or (cost.workers_needed or 0) <= cost.cores:
        return f"set num_workers to {_range_text(cost, cost.cores)} {now}"
    usable = max(math.floor(cost.cores), 1)
    lacking = f"{_range_text(cost)} workers would be needed, but the job has {cost.cores:g} CPUs"
    if cost.workers >= usable:
        return f"{lacking}: more workers do not help; reduce the work per batch"
    return f"set num_workers to {usable} {now}, and reduce the work per batch: {lacking}"


def _range_text(cost: LoadingCost, cores: float | None = None) -> str:
    """Return how many workers would keep up, and not more than the CPUs."""
    least, most = cost.workers_needed or 1, cost.workers_needed_most
    if cores is not None and (most is None or most > cores):
        most = max(math.floor(cores), least)
    if most is None:
        return f"{least} or more"
    return f"{least}" if most <= least else f"{least} to {most}"


def _cores(cost: LoadingCost) -> str:
    return "" if cost.cores is None else f" (the job has {cost.cores:g} CPUs)"

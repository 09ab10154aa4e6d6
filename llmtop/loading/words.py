"""Wording of a cost of loading: one sentence with its numbers, and the advice."""

from __future__ import annotations

import math

from llmtop.format import duration, percent_text, rate
from llmtop.model.loading_causes import CAUSE_NAMES
from llmtop.model.snapshot import LoadingCost

_IS = {
    **CAUSE_NAMES,
    "start": "starting workers",
    "own": "code of the script",
    "unseen": "code whose stacks cannot be read",
}
_SOME_BYTES_PER_S = 1e6
"""Less comes from storage by the way: modules that are imported, a checkpoint's list."""
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
}


def sentence(cost: LoadingCost, slow: int | None, cpu_wait_pct: float) -> str:
    """Return the sentence.

    Args:
        cost: all but the sentence.
        slow: the pid of the slow worker.
        cpu_wait_pct: how long its threads together waited for a CPU, of the window.
    """
    cpu_wait_pct = min(cpu_wait_pct, 100.0)  # two threads of a worker may wait at once
    who = (
        f"{cost.workers} workers"
        if cost.workers > 1
        else "1 worker"
        if cost.workers
        else "the training process itself"
    )
    at = f" in {cost.place}" if cost.place else ""
    share = percent_text(cost.share_pct) if cost.share_pct is not None else ""
    if cost.cause == "slow_worker":
        return (
            f"Loader: 1 of {cost.workers} workers (pid {slow}) is slower than the others, which wait while it "
            f"runs{at}."
        )
    if cost.cause in ("cpu", "worker_threads"):
        lack = f"{who} waited {percent_text(cpu_wait_pct)} of the time for a CPU{_cores(cost)}"
        own = f"; threads of libraries in the workers take most of the CPU time{at}"
        return f"Loader: {lack}{own if cost.cause == 'worker_threads' else ''}."
    if cost.cause == "too_few_workers":
        are = "are all" if cost.workers > 1 else "is"
        few = "the training process itself prepares the batches" if not cost.workers else f"{who} {are} busy"
        return f"Loader: too few workers; {few}, and {share} of the time goes to {_code(cost)}{at}."
    if cost.cause == "own_code":
        cores = "" if cost.cores is None else f"{cost.cores:g} "
        return f"Loader: {share} of the time goes to {_code(cost)} ({who}{at}), which uses all {cores}CPUs."
    if cost.cause == "unknown":
        most = ", ".join(
            f"{_work_name(name, cost)} {percent_text(value)}" for name, value in list(cost.shares.items())[:3]
        )
        ready = f"; {percent_text(cpu_wait_pct)} waiting for a CPU" if cpu_wait_pct >= 10 else ""
        return f"Loader: no single cause; {most or 'no stack sample shows the preparation of a batch'}{at}{ready}."
    library = f" by the library {cost.library}" if cost.library else ""
    reads = ""
    if cost.cause in ("disk", "file") and cost.read_bytes_per_s is not None:
        some = cost.read_bytes_per_s >= _SOME_BYTES_PER_S
        reads = (
            f"; {rate(cost.read_bytes_per_s)} come from storage"
            if some or cost.cause == "disk"
            else "; they are in memory"
        )
    return f"Loader: {share} of the time goes to {_IS[cost.cause]}{library} ({who}{at}){reads}."


def advice_of(cost: LoadingCost, *, cpus_are_busy: bool = False) -> str:
    """Return the advice with the largest possible saving.

    Args:
        cost: all but the advice.
        cpus_are_busy: whether a worker of more would find no CPU.
    """
    parts = [_DO[cost.cause]] if cost.cause in _DO else []
    if cpus_are_busy:
        parts.append("more workers do not help: all CPUs are busy")
    elif cost.workers_needed is not None and cost.cause not in ("cpu", "worker_threads"):
        parts.append(_workers(cost))
    if cost.wait_pct is not None and (parts or cost.looks):
        most = f"{percent_text(cost.wait_pct)} of the step"
        if cost.save_seconds is not None:
            most = f"{duration(cost.save_seconds)} ({percent_text(cost.wait_pct)}) of the step"
        parts.append(f"this can save up to {most}")
    return "; ".join(parts)


def _work_name(name: str, cost: LoadingCost) -> str:
    """Return the name of a kind of work; of files with the origin of their bytes, as far as the kernel reports
    it."""
    if name != "file" or cost.read_bytes_per_s is None:
        return _IS[name]
    some = cost.read_bytes_per_s >= _SOME_BYTES_PER_S
    return f"{_IS[name]} ({rate(cost.read_bytes_per_s)} from storage)" if some else f"{_IS[name]} (from memory)"


def _code(cost: LoadingCost) -> str:
    """Return the origin of the code that no table lists."""
    return f"code of the library {cost.library}" if cost.library else "code of the script"


def _workers(cost: LoadingCost) -> str:
    now = f"(now {cost.workers})"
    if cost.cause in ("disk", "network"):
        return f"set num_workers to {_range_text(cost)} {now}, if the storage can serve that many"
    if cost.cause == "sleep":
        return f"or set num_workers to {_range_text(cost)} {now}, if each may sleep on its own"
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

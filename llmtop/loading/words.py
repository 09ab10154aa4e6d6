"""Wording of a cost of loading: one sentence with its numbers, and the advice."""

from __future__ import annotations

from llmtop.format import duration, percent, rate
from llmtop.model.snapshot import LoadingCost

_IS = {
    "decode": "decoding",
    "tokenize": "tokenizing",
    "collate": "collating",
    "disk": "waiting for the disk",
    "network": "waiting for the network",
    "lock": "waiting for a lock that they share",
    "gil": "waiting for Python's own lock",
    "file": "reading files",
    "sleep": "sleeping",
    "transfer": "handing batches from process to process",
    "start": "starting workers",
    "own": "the script's own code",
    "unseen": "running, in code that could not be read",
}
_SOME_BYTES_PER_S = 1e6
"""Less comes from storage by the way: modules that are imported, a checkpoint's list."""
_DO = {
    "decode": "decode once and store the result (or smaller images), decode on the GPU (nvJPEG, DALI), or a "
    "faster decoder (torchvision.io, turbojpeg, Pillow-SIMD)",
    "tokenize": "tokenize once and store the ids, or tokenize whole batches with a fast tokenizer",
    "collate": "collate tensors of one size (pad or pack beforehand), stack once into a buffer, and copy no "
    "Python lists",
    "disk": "read fewer and larger pieces (shards), from a local NVMe or from memory (a cache, tmpfs)",
    "network": "stage the data on this machine, read larger pieces, and fetch several at once ahead of need",
    "lock": "give each worker what it needs for itself, and hold the lock for less",
    "gil": "move the work into worker processes: threads of one process share one lock",
    "slow_worker": "see what is different about what that worker is given; in_order=False (torch 2.6) does not "
    "wait for it",
    "cpu": "fewer processes beside it on these CPUs, or more CPUs for the job",
    "too_few_workers": "more DataLoader workers",
    "own_code": "make that code cheaper, or do its work once beforehand and store the result",
}


def sentence(cost: LoadingCost, slow: int | None, cpu_wait_pct: float) -> str:
    """The sentence.

    Args:
        cost: all but the sentence.
        slow: the pid of the slow worker.
        cpu_wait_pct: how long its threads together waited for a CPU, of the window.
    """
    who = (
        f"its {cost.workers} workers"
        if cost.workers > 1
        else "its worker"
        if cost.workers
        else "the training itself"
    )
    at = f" in {cost.place}" if cost.place else ""
    share = percent(cost.share_pct) if cost.share_pct is not None else ""
    if cost.cause == "slow_worker":
        return (
            f"One of {cost.workers} workers (pid {slow}) holds the others up: it is at work{at} while they wait."
        )
    if cost.cause == "cpu":
        return (
            f"The loader would keep up if it had its CPUs: {who} waited {percent(cpu_wait_pct)} of the time for "
            f"one{_cores(cost)}."
        )
    if cost.cause == "too_few_workers":
        are = "are all" if cost.workers > 1 else "is"
        few = "no worker prepares batches beside it" if not cost.workers else f"{who} {are} busy"
        return f"Too few workers: {few}, {share} of the time with {_code(cost)}{at}."
    if cost.cause == "own_code":
        cores = "" if cost.cores is None else f"{cost.cores:g} "
        return f"Preparing batches is {share} {_code(cost)} ({who}{at}), and the {cores}CPUs are full."
    if cost.cause == "unknown":
        most = ", ".join(
            f"{_work_name(name, cost)} {percent(value)}" for name, value in list(cost.shares.items())[:3]
        )
        ready = f"; ready without a CPU {percent(cpu_wait_pct)} of the time" if cpu_wait_pct >= 10 else ""
        seen = f"{most or 'nobody was seen preparing a batch'}{at}{ready}"
        return f"What its loader's time goes into is unknown: {seen}."
    library = f" by {cost.library}" if cost.library else ""
    reads = ""
    if cost.cause == "disk" and cost.read_bytes_per_s is not None:
        reads = f"; {rate(cost.read_bytes_per_s)} come from storage"
    return f"Preparing batches is {share} {_IS[cost.cause]}{library} ({who}{at}){reads}."


def advice_of(cost: LoadingCost) -> str:
    """What to do, and what it saves at most."""
    parts = [_DO[cost.cause]] if cost.cause in _DO else []
    if cost.workers_needed is not None:
        parts.append(_workers(cost))
    if cost.wait_pct is not None:
        most = f"{percent(cost.wait_pct)} of each step"
        if cost.save_seconds is not None:
            most = f"{duration(cost.save_seconds)} ({percent(cost.wait_pct)}) of each step"
        parts.append(f"that saves at most {most}" if parts else f"at most {most} can be saved")
    return "; ".join(parts)


def _work_name(name: str, cost: LoadingCost) -> str:
    """Return the name of a kind of work; of files with the origin of their bytes, as far as the kernel reports
    it."""
    if name != "file" or cost.read_bytes_per_s is None:
        return _IS[name]
    some = cost.read_bytes_per_s >= _SOME_BYTES_PER_S
    return f"{_IS[name]} ({rate(cost.read_bytes_per_s)} from storage)" if some else f"{_IS[name]} (from memory)"


def _code(cost: LoadingCost) -> str:
    """Whose code it is that no table knows."""
    return f"code of {cost.library}" if cost.library else "the script's own code"


def _workers(cost: LoadingCost) -> str:
    needed, cores = cost.workers_needed or 0, cost.cores
    if cost.cause in ("disk", "network"):
        return f"at least {needed} workers would keep up, if it serves as many at once"
    if cores is not None and needed > cores:
        return f"at least {needed} workers would keep up, but there are {cores:g} CPUs: the work must become less"
    return f"at least {needed} workers would keep up (there are {cost.workers})"


def _cores(cost: LoadingCost) -> str:
    return "" if cost.cores is None else f", of {cost.cores:g} that the training may use"

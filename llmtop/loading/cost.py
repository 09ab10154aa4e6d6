"""Finds the cost of loading that makes a training wait: a cause with its evidence, or "unknown".

`decide` is pure: stacks, states and rates in, one `LoadingCost` out; the report, the alert, the screen of stacks
and every `--json` show its result. What it asks, in this order:

1. Does the training wait? Under `LEAST_WAIT_PCT` of its own thread's samples in the loader there is no finding. It
   is the alert input_bound's threshold (10 %; others warn from 5 % on).
2. Does one worker hold the others up ("slow_worker")? It is busy most of the time and each other less than half as
   long, while the training waits: a DataLoader gives batches in order, so all wait for the last. If it only
   waits for a disk, the network or a lock, that is the word, for it may be any worker's turn. Where all together
   could make twice the batches, what they do is not what the training waits for: then it is the one that has most
   of their work, or nothing is named: batches that come in bursts look like that.
3. Would the loader keep up without competition for its CPUs ("cpu")? A worker that is busy for b of the time, and
   for c of it ready but without a CPU, would need b - c; the training that waits for w of the time needs the
   batches in 1 - w, less what it stands without a CPU itself. What CPUs it used must be within that part of those
   that it may use: else it has too few in any case. That is arithmetic, not a threshold; and the cause is named
   only if c is most of b. Where the training's own thread makes the batches, this is not asked: a lack of CPUs
   makes its steps longer as well.
4. Else the kind of work or waiting that takes most of the time in which batches are prepared: a word is said only
   if it takes more than half, by the lower end of Wilson's 95 % interval of that share over the samples, so that
   few samples name nothing. Of several that are near, none is named.

Code that belongs to no known library is "too_few_workers" where more workers would run: it can be done in more
processes whatever it is. Where the training leaves less than half of the CPU that a worker takes, one more would
take it from the others: that is "own_code", also where its threads would fill the CPUs if no other program ran,
where they wait for CPUs that others have, where the training's own thread runs it beside idle workers (a sampler),
and where workers start anew: what each does first is not divided among more of them.
Reading files and waiting for their bytes are one cost. A lock that N workers wait for is held by at most one of
them: while they wait for a share L of their time, they hold it for L / (N - 1) at least, so L N / (N - 1) goes to
what the lock protects. That sum is compared, since two workers never wait for each other for more than half. Work
before the first batch of a worker is "worker_starts". Where threads wait for CPUs, the sentence adds it to the
cause, and who has these CPUs. Before all that, threads of libraries in the workers that
want more than half of the CPUs, and more of them than the workers' own, are "worker_threads".

Workers that would suffice: N workers busy for b of the time make one batch a step; without waiting a step takes 1
- w of what it takes now, so N b / (1 - w) are needed, if a worker of more is not slower. It is a range, from the
ends of Wilson's intervals of b and w: where a training hardly does anything but wait, few samples leave much
open. The advice is capped by the CPUs, except for waits for storage. The range is absent where more workers wait
for the same thing (a lock, Python's own lock), and where the work needs CPUs and all are busy. What is saved is
at most the wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from llmtop.loading.frames import Calls, IsGenerator
from llmtop.loading.other_threads import library_threads
from llmtop.loading.seen import LoaderSamples
from llmtop.loading.shares import LoaderThread, LoadingShares, Part, loading_shares
from llmtop.loading.words import Circumstances, advice_of, sentence
from llmtop.model.proportions import wilson_interval
from llmtop.model.snapshot import LoadingCost

LEAST_WAIT_PCT = 10.0
_ROOM, _QUEUES = 0.5, 0.25
"""Shares of the CPU that a worker takes: the part that must be free for one more, and the longest queueing of
the present ones."""
_CAUSES: dict[Part, str] = {
    "decode": "decode",
    "tokenize": "tokenize",
    "collate": "collate",
    "collate_fn": "collate_fn",
    "disk": "disk",
    "network": "network",
    "lock": "lock",
    "gil": "gil",
    "sleep": "sleep",
    "file": "file",
    "transfer": "transfer",
    "start": "worker_starts",
    "own": "too_few_workers",
}
_SHARED: tuple[Part, ...] = ("disk", "network", "lock")
"""Waits that one worker may have while the others have none; next time another worker waits."""
_NOT_MORE = (
    "own_code",
    "lock",
    "gil",
    "slow_worker",
    "cpu",
    "worker_threads",
    "transfer",
    "worker_starts",
    "unknown",
)
_ON_CPU = ("decode", "tokenize", "collate", "collate_fn", "too_few_workers")
"""Causes for which a worker of more needs a CPU of its own."""
_READING: tuple[Part, ...] = ("disk", "file")
"""One cost, of which the kernel's word is the one where bytes come from storage."""


def decide(
    seen: LoaderSamples, calls: Calls = lambda frame: (), is_generator: IsGenerator = lambda frame: False
) -> LoadingCost | None:
    """Return the cost of the data loader; None if the training does not wait for it, or no sample was taken.

    Args:
        seen: stacks, states and rates of one window.
        calls: what the line of a frame calls (`llmtop.loading.source.SourceFiles.calls`).
        is_generator: whether the function of a frame has a yield.
    """
    found = loading_shares(seen, calls, is_generator)
    if found is None or (not found.threads and found.wait_samples == 0):
        return None
    if 100 * found.wait < LEAST_WAIT_PCT:
        return None
    pooled: Counter[Part] = Counter()
    for one in found.judged:
        pooled.update(one.parts)
    pooled = _one_reading(pooled)
    busy = sum(pooled.values())
    parts = {part: 100 * share / busy for part, share in pooled.most_common() if share > 0} if busy > 0 else {}
    cause, slow = _cause(seen, found, pooled, busy)
    part = _part_of(cause, parts)
    library, place = _library_and_place(found.judged if slow is None else [slow], part)
    full = cause in _ON_CPU and not _has_room(seen, found)
    no_more = full or cause in _NOT_MORE or _is_beside_workers(found)
    least, most = (None, None) if no_more else _needed_workers(found)
    cost = LoadingCost(
        cause=cause,
        summary="",
        share_pct=_round_or_none(parts.get(part))
        if part is not None and cause not in ("slow_worker", "cpu")
        else None,
        shares={name: _round_or_none(share) or 0.0 for name, share in parts.items()},
        library=library or None,
        place=place or None,
        workers=found.workers,
        workers_needed=least,
        workers_needed_most=most,
        cores=seen.cores,
        wait_pct=_round_or_none(100 * found.wait),
        save_seconds=None if seen.step_seconds is None else found.wait * seen.step_seconds,
        read_bytes_per_s=seen.read_bytes_per_s,
        looks=sum(one.samples for one in found.judged),
    )
    circumstances = Circumstances(
        slow_pid=None if slow is None else slow.pid,
        cpu_wait_pct=100 * sum(one.cpu_wait for one in found.judged) / len(found.judged) if found.judged else 0.0,
        is_queueing=_is_queueing(found),
        cpus=found.cpus,
        wanted_cpus=found.wanted_cpus,
        cpus_are_busy=full,
        by_itself=any(one.trains for one in found.threads),
        by_torch=found.by_torch,
        idle_pct=100 * _idle_share(found) if _have_time_left(found, busy) else None,
        started=found.started,
    )
    cost = replace(cost, summary=sentence(cost, circumstances))
    return replace(cost, advice=advice_of(cost, circumstances))


def _is_beside_workers(found: LoadingShares) -> bool:
    """Return True if the training's own thread makes what it waits for, though there are workers."""
    return found.workers > 0 and any(one.trains for one in found.threads)


def _idle_share(found: LoadingShares) -> float:
    """Return the share of their time in which the workers wait for work."""
    present = sum(one.present for one in found.threads if one.worker)
    return max(1.0 - sum(one.busy for one in found.threads if one.worker) / present, 0.0) if present else 0.0


def _have_time_left(found: LoadingShares, busy: float) -> bool:
    """Return True if the workers together could make twice the batches that the training takes without waiting."""
    if not found.workers or any(one.trains for one in found.threads):
        return False
    return busy / sum(one.present for one in found.judged) <= (1.0 - found.wait) / 2


def _cause(
    seen: LoaderSamples, found: LoadingShares, pooled: Counter[Part], busy: float
) -> tuple[str, LoaderThread | None]:
    """Return the word, and the worker that it is about where it is about one."""
    workers = [one for one in found.threads if one.worker]
    if busy <= 0 or _has_busy_libraries(seen, workers):
        return ("unknown" if busy <= 0 else "worker_threads"), None
    within = 1.0 - found.wait
    by_itself = any(one.trains for one in found.threads)
    spare = _have_time_left(found, busy)
    slow = None if by_itself else _slow(workers, within, spare=spare)
    judged = found.judged if slow is None else [slow]
    held, contended = sum(one.busy for one in judged), sum(one.cpu_wait for one in judged)
    itself = seen.cpu.get(seen.pid)
    alone = max(within - itself.wait_pct / 100, 0.0) if itself is not None else within
    has_them = seen.cores is None or found.cpus <= seen.cores * alone
    number = sum(one.present for one in judged)
    would = (held - contended) / number <= alone
    # One that is woken up for a batch and gets no CPU stands in no code of a batch yet.
    does_not = within < held / number or 2 * contended > number
    if has_them and would and does_not and not by_itself and 2 * contended > held:
        return "cpu", None
    if slow is not None and max(slow.parts, key=lambda part: slow.parts[part]) not in _SHARED:
        return "slow_worker", slow
    factors: dict[Part, float] = {"lock": _protected(found)}
    part = max(pooled, key=lambda one: pooled[one] * factors.get(one, 1.0))
    samples = sum(one.samples for one in found.judged)
    lowest = wilson_interval(round(pooled[part] / busy * samples), samples)[0] * factors.get(part, 1.0)
    if (spare and slow is None) or lowest <= 0.5 or part not in _CAUSES:
        return "unknown", None
    if part == "own" and workers and not by_itself and busy / number <= max(within, 0.5):
        return "unknown", None  # they have time left, and the training waits all the same
    return _own_code(seen, found) if part == "own" else _CAUSES[part], None


def _protected(found: LoadingShares) -> float:
    """Return by how much the time in what a lock protects is longer than the waits for it, at least."""
    return found.workers / (found.workers - 1) if found.workers > 1 else 1.0


def _has_busy_libraries(seen: LoaderSamples, workers: Sequence[LoaderThread]) -> bool:
    """Return True if threads of libraries in the workers want most of the CPUs, and more than the workers."""
    own = sum((one.cpu or 0.0) + one.cpu_wait for one in workers)
    return library_threads([one.pid for one in workers], seen) > max(own, (seen.cores or math.inf) / 2)


def _one_reading(pooled: Counter[Part]) -> Counter[Part]:
    """Assign the time in files and in waits for their bytes to the larger of the two: it is one cost."""
    largest = max(_READING, key=lambda part: pooled[part])
    merged = Counter({part: share for part, share in pooled.items() if part not in _READING})
    merged[largest] = sum(pooled[part] for part in _READING)
    return merged


def _own_code(seen: LoaderSamples, found: LoadingShares) -> str:
    """Return the word for code of the script's own: whether one more worker would find half of the CPU that it
    takes."""
    if any(one.shares_lock for one in found.threads):
        return "unknown"  # on a busy machine a wait for the GIL looks like a wait for a CPU
    starts_anew = found.started > 0 or _is_beside_workers(found)
    return "own_code" if starts_anew or not _has_room(seen, found) else "too_few_workers"


def _has_room(seen: LoaderSamples, found: LoadingShares) -> bool:
    """Return True if one more worker would find a CPU, as far as is known."""
    return _has_cpu_for_one(seen, found) and not _is_queueing(found)


def _takes(found: LoadingShares) -> list[float]:
    """Return the CPUs that each thread wants, where that is known."""
    return [one.cpu + one.cpu_wait for one in found.judged if one.cpu is not None]


def _has_cpu_for_one(seen: LoaderSamples, found: LoadingShares) -> bool:
    takes = _takes(found)
    if seen.cores is None or not takes:
        return True
    return seen.cores - _wanted_cpus(found) >= _ROOM * sum(takes) / len(takes)


def _is_queueing(found: LoadingShares) -> bool:
    """Return True if the threads wait for CPUs for a large part of the time that they want one."""
    takes = _takes(found)
    return bool(takes) and sum(one.cpu_wait for one in found.judged) >= _QUEUES * sum(takes)


def _wanted_cpus(found: LoadingShares) -> float:
    """Return how many CPUs all threads would have if no other program ran: the busiest would not wait."""
    busiest = max(found.threads, key=lambda one: one.cpu or 0.0)
    return found.cpus * max(busiest.busy / busiest.cpu, 1.0) if busiest.cpu else found.cpus


def _slow(workers: Sequence[LoaderThread], within: float, *, spare: bool) -> LoaderThread | None:
    """Return the worker that holds the others up: it is busy, and each of them waits for more than half as
    long."""
    if len(workers) < 2 or any(one.present < 1 for one in workers):
        return None
    slowest = max(workers, key=lambda one: one.busy)
    others = [one for one in workers if one is not slowest]
    samples = sum(one.samples for one in workers)
    most = wilson_interval(slowest.samples, samples)[0] > 0.5 if spare else slowest.busy > max(within, 0.5)
    return slowest if most and all(2 * one.busy < slowest.busy for one in others) else None


def _part_of(cause: str, parts: dict[Part, float]) -> Part | None:
    named = next((part for part, word in _CAUSES.items() if word == cause), "own" if cause == "own_code" else None)
    return named if named is not None else next(iter(parts), None)


def _library_and_place(threads: Sequence[LoaderThread], part: Part | None) -> tuple[str, str]:
    """Return the library and the line of the script under which most of a part was seen."""
    libraries: Counter[str] = Counter()
    places: Counter[str] = Counter()
    stood: Counter[str] = Counter()
    for one in threads:
        for (seen_as, library, place), number in one.places.items():
            stood[place] += number
            if seen_as == part:
                libraries[library] += number
            if seen_as == part or (seen_as in _READING and part in _READING):
                places[place] += number
    found = places or stood  # for a disk that a stack knows nothing of: where the thread stood most
    library = libraries.most_common(1)[0][0] if libraries else ""
    return library, found.most_common(1)[0][0] if found else ""


def _needed_workers(found: LoadingShares) -> tuple[int | None, int | None]:
    """Return how many workers would keep up: at least and at most; None where that end is unknown."""
    wait_low, wait_high = wilson_interval(found.wait_samples, found.samples)
    shares = [wilson_interval(one.samples, round(one.samples / one.busy)) for one in found.judged if one.busy > 0]
    if not shares:
        return None, None
    low, high = (sum(ends) for ends in zip(*shares, strict=True))
    most = None if found.wait_samples >= found.samples else max(math.ceil(high / (1.0 - wait_high)), 1)
    return max(math.ceil(low / (1.0 - wait_low)), 1), most


def _round_or_none(value: float | None) -> float | None:
    return None if value is None else round(value, 1)

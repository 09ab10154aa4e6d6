"""Which cost of loading is named, by made-up looks: the word, or none."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from llmtop.loading.cost import decide
from llmtop.loading.seen import LoaderSamples, Waits
from llmtop.loading.source import SourceFiles
from llmtop.model.snapshot import LoadingCost
from llmtop.stacks.fold import CpuTime
from llmtop.stacks.samples import Frame, SampledProcess, Stack, ThreadId

TORCH = "/env/lib/python3.11/site-packages/torch/utils/data/"
PIL = Frame("resize", "/env/lib/python3.11/site-packages/PIL/Image.py", 3)
CUT = Frame("encode", "/env/lib/python3.11/site-packages/tiktoken/core.py", 3)
OWN = Frame("Set.__getitem__", "/home/me/data.py", 7)
LOOP = Frame("_worker_loop", f"{TORCH}_utils/worker.py", 374)
FETCH = Frame("_MapDatasetFetcher.fetch", f"{TORCH}_utils/fetch.py", 54)
QUEUES = "/usr/lib/python3.11/multiprocessing/queues.py"
IDLE = (Frame("_worker_loop", f"{TORCH}_utils/worker.py", 334), Frame("Queue.get", QUEUES, 1))
AWAITS = (
    Frame("main", "/home/me/train.py", 3),
    Frame("_BaseDataLoaderIter.__next__", f"{TORCH}dataloader.py", 1),
    Frame("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 1),
    Frame("wait", "/usr/lib/python3.11/multiprocessing/connection.py", 1),
)
TRAINS = (Frame("main", "/home/me/train.py", 4),)


def worker(pid: int, doing: dict[tuple[Frame, ...], int], idle: int = 0) -> list[Stack]:
    process = SampledProcess(pid, started_by=1)
    made = [Stack(process, ThreadId(pid), (LOOP, FETCH, *frames), number) for frames, number in doing.items()]
    return [*made, Stack(process, ThreadId(pid), IDLE, idle)] if idle else made


def trains(waits: int, works: int) -> list[Stack]:
    return [
        Stack(SampledProcess(1), ThreadId(1), AWAITS, waits),
        Stack(SampledProcess(1), ThreadId(1), TRAINS, works),
    ]


def seen(*stacks: list[Stack], states: dict[int, dict[Waits, int]] | None = None, **more: object) -> LoaderSamples:
    counted = {thread: Counter(one) for thread, one in (states or {}).items()}
    return LoaderSamples(pid=1, stacks=tuple(one for each in stacks for one in each), states=counted, **more)  # type: ignore[arg-type]


def test_most_of_the_time_names_it_and_the_workers_that_suffice_are_counted() -> None:
    cost = decide(
        seen(trains(50, 50), *(worker(pid, {(OWN, PIL): 100}) for pid in (2, 3)), cores=16.0, step_seconds=0.4)
    )
    assert cost is not None
    assert (cost.cause, cost.library, cost.share_pct) == ("decode", "PIL", 100.0)
    assert cost.save_seconds == pytest.approx(0.2)
    # two that are always busy make one batch a step; half of the step is waited for
    assert cost.workers_needed in (3, 4)
    assert "up to 200 ms" in cost.advice


def test_two_that_are_near_name_none() -> None:
    cost = decide(seen(trains(80, 20), worker(2, {(OWN, PIL): 52, (OWN, CUT): 48})))
    assert cost is not None
    assert cost.cause == "unknown"
    assert "decoding 52 %" in cost.summary
    assert "tokenizing 48 %" in cost.summary


def test_few_looks_name_none() -> None:
    cost = decide(seen(trains(3, 0), worker(2, {(OWN, PIL): 3})))
    assert cost is not None
    assert cost.cause == "unknown"


def test_a_training_that_does_not_wait_has_no_finding() -> None:
    assert decide(seen(trains(5, 95), worker(2, {(OWN, PIL): 100}))) is None


def test_where_the_kernel_says_disk_the_library_is_not_blamed() -> None:
    cost = decide(
        seen(
            trains(90, 10),
            worker(2, {(OWN, PIL): 100}),
            states={2: {"disk": 80, "runs": 20}},
            read_bytes_per_s=3e6,
        )
    )
    assert cost is not None
    assert cost.cause == "disk"
    assert "from storage" in cost.summary


def test_a_wait_for_another_thread_of_the_library_is_no_lock() -> None:
    busy = {9: CpuTime(95.0, 0.0, "rayon", 2), 2: CpuTime(2.0, 0.0, "python", 2)}
    stacks = worker(2, {(OWN,): 100})
    cost = decide(seen(trains(90, 10), stacks, states={2: {"futex": 95, "runs": 5}}, cpu=busy))
    assert cost is not None
    assert cost.cause != "lock"
    alone = decide(seen(trains(90, 10), stacks, states={2: {"futex": 95, "runs": 5}}, cpu={2: busy[2]}))
    assert alone is not None
    assert alone.cause == "lock"


def test_cpus_that_others_take_are_named_only_where_it_would_keep_up_with_them() -> None:
    starved = {pid: CpuTime(15.0, 85.0, "python", pid) for pid in (2, 3)}
    cost = decide(
        seen(trains(60, 40), *(worker(pid, {(OWN, PIL): 100}) for pid in (2, 3)), cpu=starved, cores=2.0)
    )
    assert cost is not None
    assert cost.cause == "cpu"
    assert cost.workers_needed is None
    hopeless = decide(
        seen(trains(95, 5), *(worker(pid, {(OWN, PIL): 100}) for pid in (2, 3)), cpu=starved, cores=2.0)
    )
    assert hopeless is not None
    assert hopeless.cause == "decode", "even with its CPUs it would not keep up"


def test_a_training_that_lacks_cpus_itself_would_want_its_batches_sooner() -> None:
    cpu = {pid: CpuTime(15.0, 85.0, "python", pid) for pid in (2, 3)}
    looks = (trains(60, 40), *(worker(pid, {(OWN, PIL): 100}) for pid in (2, 3)))
    slowed = cpu | {1: CpuTime(10.0, 30.0, "python", 1)}
    cost = decide(seen(*looks, cpu=slowed, cores=2.0))
    assert cost is not None
    assert cost.cause == "decode", "with its CPUs it would train in 10 of 100, and two workers take 15"


def test_a_worker_that_is_woken_and_gets_no_cpu_lacks_cpus() -> None:
    woken = {2: CpuTime(2.0, 66.0, "python", 2)}
    cost = decide(seen(trains(41, 59), worker(2, {(OWN,): 47}, idle=53), cpu=woken, cores=2.0))
    assert cost is not None
    assert cost.cause == "cpu", cost.summary


def test_one_slow_worker_is_not_too_few_of_them() -> None:
    others = [worker(pid, {(OWN,): 5}, idle=95) for pid in range(3, 10)]
    cost = decide(seen(trains(90, 10), worker(2, {(OWN,): 100}), *others))
    assert cost is not None
    assert (cost.cause, cost.workers, cost.workers_needed) == ("slow_worker", 8, None)
    assert "pid 2" in cost.summary


def test_a_worker_whose_turn_it_is_to_wait_for_a_disk_is_not_called_slow() -> None:
    others = [worker(pid, {(OWN,): 5}, idle=95) for pid in (3, 4, 5)]
    states: dict[int, dict[Waits, int]] = {2: {"disk": 97, "runs": 3}}
    cost = decide(seen(trains(90, 10), worker(2, {(OWN,): 100}), *others, states=states, read_bytes_per_s=3e6))
    assert cost is not None
    assert cost.cause == "disk"


def test_workers_with_half_their_time_left_are_not_what_is_waited_for() -> None:
    """One of them is, where most of the work is its; else nothing is named."""
    others = [worker(pid, {(OWN,): 2}, idle=98) for pid in range(3, 10)]
    cost = decide(seen(trains(20, 80), worker(2, {(OWN, PIL): 55}, idle=45), *others))
    assert cost is not None
    assert cost.cause == "slow_worker"
    cost = decide(seen(trains(20, 80), *(worker(pid, {(OWN, PIL): 30}, idle=70) for pid in (2, 3, 4))))
    assert cost is not None
    assert cost.cause == "unknown", cost.summary
    cost = decide(seen(trains(20, 80), *(worker(pid, {(OWN, PIL): 60}, idle=40) for pid in (2, 3, 4))))
    assert cost is not None
    assert cost.cause == "decode"


def test_more_workers_are_advised_only_where_there_is_a_cpu_for_one() -> None:
    def of(number: int, cores: float, queues_pct: float = 0.0) -> LoadingCost:
        pids = range(2, 2 + number)
        cpu = {
            pid: CpuTime(100.0 * min(1.0, cores / number) - queues_pct, queues_pct, "python", pid) for pid in pids
        }
        cost = decide(seen(trains(90, 10), *(worker(pid, {(OWN,): 100}) for pid in pids), cpu=cpu, cores=cores))
        assert cost is not None
        return cost

    assert of(4, cores=2.0).cause == "own_code"
    assert of(4, cores=2.0).workers_needed is None
    assert "uses all 2 CPUs" in of(4, cores=2.0).summary
    assert of(4, cores=2.0, queues_pct=40.0).cause == "own_code", "it would fill them without others as well"
    assert "data.py:7" in of(4, cores=2.0).summary
    assert of(4, cores=16.0).cause == "too_few_workers"
    others = of(4, cores=16.0, queues_pct=50.0)
    assert others.cause == "own_code"
    assert "Set.__getitem__ (data.py:7)" in others.summary
    assert "50 % of the time: other programs use the CPUs (the job uses 2.0 of 16)" in others.summary
    assert "1 worker is busy" in of(1, cores=2.0).summary


def test_workers_of_several_epochs_are_counted_as_many_as_there_are_at_a_time() -> None:
    epochs = [worker(pid, {(OWN, PIL): 32}) for pid in range(2, 8)]  # two at a time, three times
    cost = decide(seen(trains(90, 10), *epochs, cpu={1: CpuTime(10.0, 0.0, "python", 1)}, cores=16.0))
    assert cost is not None
    assert cost.cause == "decode"
    assert cost.workers == 2
    assert cost.workers_needed is not None
    assert cost.workers_needed_most is not None
    least, most = cost.workers_needed, cost.workers_needed_most
    assert 5 < least <= 20 <= most < 60, "two that are always busy, over the tenth that is not waited"


INIT = Frame("read_vocabulary", "/home/me/data.py", 15)


def started(pid: int, frames: tuple[Frame, ...], number: int) -> list[Stack]:
    """Return samples of a worker before its first batch."""
    return [Stack(SampledProcess(pid, started_by=1), ThreadId(pid), frames, number)]


@pytest.mark.parametrize(
    "frames",
    [
        (LOOP, INIT),
        (
            LOOP,
            Frame("_IterableDatasetFetcher.__init__", FETCH.file, 20),
            Frame("Logs.__iter__", "/home/me/data.py", 15),
        ),
        (Frame("spawn_main", "/usr/lib/python3.11/multiprocessing/spawn.py", 122), INIT),
    ],
)
def test_work_before_the_first_batch_of_each_worker_is_its_start(frames: tuple[Frame, ...]) -> None:
    epochs = [one for pid in range(2, 8) for one in (*started(pid, frames, 32), *worker(pid, {(OWN,): 1}))]
    cost = decide(
        seen(trains(95, 5), epochs, cpu={1: CpuTime(10.0, 0.0, "python", 1)}, cores=2.0, step_seconds=0.2)
    )
    assert cost is not None
    assert (cost.cause, cost.workers, cost.workers_needed) == ("worker_starts", 2, None)
    assert "data.py:15" in cost.summary
    assert "4 workers were started anew" in cost.summary
    assert "persistent_workers=True" in cost.advice


def test_a_first_read_in_each_new_worker_asks_for_workers_that_stay() -> None:
    epochs = [worker(pid, {(OWN,): 32}) for pid in range(2, 8)]
    cost = decide(seen(trains(95, 5), *epochs, cpu={1: CpuTime(10.0, 0.0, "python", 1)}, cores=16.0))
    assert cost is not None
    assert (cost.cause, cost.workers_needed) == ("own_code", None)
    assert "data.py:7" in cost.summary
    assert "persistent_workers=True" in cost.advice
    stay = decide(seen(trains(95, 5), *epochs[:2], cores=16.0))
    assert stay is not None
    assert "persistent_workers" not in stay.advice


SAMPLER = (TRAINS[0], Frame("_BaseDataLoaderIter._next_index", f"{TORCH}dataloader.py", 1), OWN)


def test_a_sampler_in_the_training_process_is_no_work_of_the_idle_workers() -> None:
    main = [Stack(SampledProcess(1), ThreadId(1), SAMPLER, 60), *trains(0, 40)[1:]]
    cost = decide(seen(main, *(worker(pid, {(OWN, PIL): 9}, idle=91) for pid in (2, 3)), cores=16.0))
    assert cost is not None
    assert (cost.cause, cost.workers, cost.workers_needed) == ("own_code", 2, None)
    assert "the training process itself in Set.__getitem__ (data.py:7)" in cost.summary
    assert "more workers do not help: this code runs in the training process" in cost.advice


@pytest.mark.parametrize("queues_pct", [0.0, 40.0])
def test_a_loader_without_workers_is_named_as_one_whatever_else_runs(queues_pct: float) -> None:
    fetches = (TRAINS[0], Frame("_SingleProcessDataLoaderIter._next_data", f"{TORCH}dataloader.py", 1), FETCH, OWN)
    main = [Stack(SampledProcess(1), ThreadId(1), fetches, 60), *trains(0, 40)[1:]]
    cpu = {1: CpuTime(100.0 - queues_pct, queues_pct, "python", 1)}
    cost = decide(seen(main, cpu=cpu, cores=2.0))
    assert cost is not None
    assert cost.cause == ("own_code" if queues_pct else "too_few_workers")
    assert "num_workers=0" in cost.summary
    assert "data.py:7" in cost.summary
    assert "set num_workers to" in cost.advice
    assert ("other programs use the CPUs" in cost.summary) == (queues_pct > 0)


def _locked(waits: int, works: int, workers: int) -> LoadingCost:
    lock = Frame("Lock.acquire", "/usr/lib/python3.11/threading.py", 1)
    cost = decide(
        seen(trains(90, 10), *(worker(2 + at, {(OWN, lock): waits, (OWN,): works}) for at in range(workers)))
    )
    assert cost is not None
    return cost


def test_what_a_lock_protects_is_longer_than_the_waits_for_it() -> None:
    """Of N workers that only run under one lock, each waits for (N - 1) / N of its time."""
    assert _locked(50, 50, workers=2).cause == "lock"
    assert _locked(20, 80, workers=2).cause == "too_few_workers"
    assert _locked(56, 44, workers=3).cause == "lock"
    assert _locked(40, 60, workers=8).cause == "too_few_workers"


def test_workers_that_are_idle_and_waited_for_have_no_cause_of_their_own() -> None:
    cost = decide(seen(trains(20, 80), *(worker(pid, {(OWN, PIL): 30}, idle=70) for pid in (2, 3, 4))))
    assert cost is not None
    assert cost.cause == "unknown"
    assert "no cause found; the 3 workers are idle 70 % of the time" in cost.summary
    assert "prefetch_factor" in cost.advice


def test_work_that_the_workers_may_keep_up_with_asks_for_a_longer_queue() -> None:
    cost = decide(seen(trains(55, 45), *(worker(pid, {(OWN, PIL): 45}, idle=55) for pid in (2, 3)), cores=8.0))
    assert cost is not None
    assert cost.cause == "decode"
    assert "raise prefetch_factor, if the 2 workers make enough batches but in bursts" in cost.advice
    busy = decide(seen(trains(55, 45), *(worker(pid, {(OWN, PIL): 100}) for pid in (2, 3)), cores=8.0))
    assert busy is not None
    assert "prefetch_factor" not in busy.advice


def test_a_few_percent_of_waiting_for_a_cpu_are_no_part_of_the_sentence() -> None:
    sleeps: dict[int, dict[Waits, int]] = {2: {"sleep": 98, "runs": 2}}
    cpu = {2: CpuTime(2.0, 4.0, "python", 2)}
    cost = decide(seen(trains(90, 10), worker(2, {(OWN,): 100}), states=sleeps, cpu=cpu, cores=2.0))
    assert cost is not None
    assert "CPU" not in cost.summary


def test_the_limit_of_a_server_and_of_a_disk_is_not_known() -> None:
    states: dict[int, dict[Waits, int]] = {2: {"socket": 98, "runs": 2}}
    cost = decide(seen(trains(97, 3), worker(2, {(OWN,): 100}), states=states, cores=2.0))
    assert cost is not None
    assert cost.cause == "network"
    assert "try num_workers=2 (now 1): how much the server can serve at once is not known" in cost.advice
    read = Frame("_getitem", "/usr/lib/python3.11/tarfile.py", 7)
    cost = decide(
        seen(
            trains(97, 3),
            worker(2, {(OWN, read): 96, (OWN,): 4}),
            states={2: {"disk": 46, "runs": 54}},
            read_bytes_per_s=7e8,
            cores=2.0,
        )
    )
    assert cost is not None
    assert (cost.cause, cost.share_pct) == ("file", 96.0)
    assert "disk" not in cost.shares, "one cost has one share"
    assert "CPU" not in cost.advice, "a wait for storage needs none"


def test_pages_that_come_from_no_disk_come_over_the_network() -> None:
    states: dict[int, dict[Waits, int]] = {2: {"disk": 80, "runs": 20}}
    stacks = worker(2, {(OWN,): 100})
    cost = decide(seen(trains(90, 10), stacks, states=states, read_bytes_per_s=0.0, written_bytes_per_s=0.0))
    assert cost is not None
    assert cost.cause == "network"
    written = decide(seen(trains(90, 10), stacks, states=states, read_bytes_per_s=0.0, written_bytes_per_s=1e6))
    assert written is not None
    assert written.cause == "disk", "it waits until what it writes is on the disk"


@pytest.mark.parametrize(
    ("package", "module"), [("webdataset", "autodecode.py"), ("datasets", "features/image.py")]
)
def test_decoders_of_packages_that_load_are_no_code_of_the_script(package: str, module: str) -> None:
    place = f"/env/lib/python3.11/site-packages/{package}"
    decoder = Frame("decode", f"{place}/{module}", 7)
    cost = decide(seen(trains(90, 10), worker(2, {(decoder,): 100})))
    assert cost is not None
    assert cost.cause == "decode"
    other = Frame("shuffle", f"{place}/filters.py", 7)
    cost = decide(seen(trains(90, 10), worker(2, {(other,): 100})))
    assert cost is not None
    assert f"code of the library {package}" in cost.summary


def test_workers_that_have_time_left_are_not_called_too_few() -> None:
    cost = decide(seen(trains(90, 10), *(worker(pid, {(OWN,): 30}, idle=70) for pid in (2, 3, 4))))
    assert cost is not None
    assert cost.cause == "unknown"


def test_stacks_that_could_not_be_read_leave_what_the_kernel_says() -> None:
    states: dict[int, dict[Waits, int]] = {2: {"disk": 70, "runs": 5, "poll": 25}}
    cost = decide(seen(trains(90, 10), states=states, workers=(2,)))
    assert cost is not None
    assert cost.cause == "disk"
    running = decide(seen(trains(90, 10), states={2: {"runs": 100}}, workers=(2,)))
    assert running is not None
    assert running.cause == "unknown"


@pytest.mark.parametrize(
    ("rate", "words"), [(None, "reading files"), (0.0, "; they are in memory"), (9e8, " from storage")]
)
def test_files_are_said_to_come_from_memory_only_where_the_kernel_says_so(rate: float | None, words: str) -> None:
    read = Frame("_getitem", "/usr/lib/python3.11/tarfile.py", 7)
    cost = decide(seen(trains(90, 10), worker(2, {(OWN, read): 100}), read_bytes_per_s=rate))
    assert cost is not None
    assert cost.cause == "file"
    assert words in cost.summary


def test_reading_and_waiting_for_what_is_read_are_one_cost() -> None:
    read = Frame("_getitem", "/usr/lib/python3.11/tarfile.py", 7)
    states: dict[int, dict[Waits, int]] = {2: {"disk": 47, "runs": 53}}
    stacks = worker(2, {(OWN, read): 91, (OWN,): 9})
    cost = decide(seen(trains(90, 10), stacks, states=states, read_bytes_per_s=3e8))
    assert cost is not None
    assert cost.cause == "disk"


@pytest.mark.parametrize("stolen_pct", [0.0, 60.0])
def test_a_sleep_is_named_and_lacks_no_cpu(stolen_pct: float) -> None:
    cpu = {2: CpuTime(2.0, stolen_pct / 30, "python", 2), 9: CpuTime(stolen_pct, stolen_pct, "other", 9)}
    states: dict[int, dict[Waits, int]] = {2: {"sleep": 98, "runs": 2}}
    cost = decide(seen(trains(90, 10), worker(2, {(OWN,): 100}), states=states, cpu=cpu, cores=2.0))
    assert cost is not None
    assert cost.cause == "sleep"
    assert "sleeping" in cost.summary
    assert "CPU" not in cost.advice, "more workers sleep at once, on no CPU"


POOL = Frame("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 83)
POOLED = (Frame("Thread.run", "/usr/lib/python3.11/threading.py", 975), POOL, OWN)
RESULT = Frame("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451)
WAIT = Frame("Condition.wait", "/usr/lib/python3.11/threading.py", 327)


def of_pool(at_work: int, cpu_pct: float) -> LoadingCost:
    """What is said of a worker whose first thread waits for a pool of four threads.

    Args:
        at_work: how many of the four are at work at a time.
        cpu_pct: of each.
    """
    process = SampledProcess(2, started_by=1)
    pool = [Stack(process, ThreadId(20 + number, "pool"), POOLED, 100) for number in range(at_work)]
    cpu = {20 + number: CpuTime(cpu_pct, 0.0, "python", 2) for number in range(at_work)}
    cost = decide(seen(trains(90, 10), [*worker(2, {(OWN, RESULT, WAIT): 100}), *pool], cpu=cpu, cores=16.0))
    assert cost is not None
    return cost


def test_what_a_pool_in_a_worker_does_is_what_a_batch_costs() -> None:
    assert of_pool(4, 25.0).cause == "gil", "four threads have one CPU together"
    assert of_pool(4, 100.0).cause == "too_few_workers", "they run beside each other: code of C"
    assert of_pool(1, 100.0).cause == "too_few_workers"
    assert "data.py:7" in of_pool(4, 25.0).summary


@pytest.mark.parametrize(
    ("other_pct", "at_work", "cause"), [(75.0, 100, "gil"), (10.0, 100, "unknown"), (10.0, 20, "own_code")]
)
def test_another_thread_of_the_training_that_has_python_s_lock_is_the_cost(
    other_pct: float, at_work: int, cause: str
) -> None:
    fetches = (TRAINS[0], Frame("_BaseDataLoaderIter.__next__", f"{TORCH}dataloader.py", 1), FETCH, OWN)
    counts = Frame("Statistics.run", "/home/me/train.py", 26)
    main = [Stack(SampledProcess(1), ThreadId(1), fetches, 66), *trains(0, 34)[1:]]
    other = [Stack(SampledProcess(1), ThreadId(5, "statistics"), (Frame("run", QUEUES, 1), counts), at_work)]
    cpu = {1: CpuTime(20.0, 5.0, "python", 1), 5: CpuTime(other_pct, 0.0, "python", 1)}
    states: dict[int, dict[Waits, int]] = {1: {"gil": 70, "runs": 30}}
    cost = decide(seen(main, other, states=states, cpu=cpu, cores=1.0))
    assert cost is not None
    assert cost.cause == cause
    assert cost.workers_needed is None
    assert ("Statistics.run (train.py:26)" in cost.summary) == (cause == "gil")


def test_batches_that_are_pickled_are_what_is_waited_for() -> None:
    process = SampledProcess(2, started_by=1)
    feed = Frame("Queue._feed", QUEUES, 244)
    sends = Frame("_ForkingPickler.dumps", "/usr/lib/python3.11/multiprocessing/reduction.py", 51)
    feeder = [
        Stack(process, ThreadId(21, "QueueFeederThread"), (feed, sends), 80),
        Stack(process, ThreadId(21, "QueueFeederThread"), (feed, WAIT), 20),
    ]
    cost = decide(seen(trains(90, 10), [*worker(2, {(OWN,): 5}, idle=95), *feeder]))
    assert cost is not None
    assert (cost.cause, cost.workers_needed) == ("transfer", None)


def test_threads_of_libraries_in_the_workers_are_not_too_few_workers() -> None:
    stacks = [one for pid in (2, 3) for one in worker(pid, {(OWN,): 100})]
    cpu = {pid: CpuTime(10.0, 60.0, "python", pid) for pid in (2, 3)}
    cpu |= {10 * pid + number: CpuTime(10.0, 60.0, "python", pid) for pid in (2, 3) for number in range(7)}
    cost = decide(seen(trains(90, 10), stacks, cpu=cpu, cores=2.0))
    assert cost is not None
    assert (cost.cause, cost.workers_needed) == ("worker_threads", None)
    assert "set_num_threads" in cost.advice


def test_what_a_function_of_the_script_returns_is_followed(tmp_path: Path) -> None:
    script = tmp_path / "made.py"
    script.write_text(
        "from tokenizers import Tokenizer\ndef make():\n    tok = Tokenizer.from_file('t')\n    return tok\n"
        "class Set:\n    def __init__(self):\n        self.tok = make()\n"
        "    def __getitem__(self, i):\n        return self.tok.encode(i)\n"
    )
    assert SourceFiles().calls(Frame("Set.__getitem__", str(script), 9)) == (
        "tokenizers.Tokenizer.from_file.encode",
    )


SCRIPT = """import cv2
import multiprocessing as mp
from tokenizers import Tokenizer
lock = mp.Lock()
class Set:
    def __init__(self):
        self.tok = Tokenizer.from_file("t.json")
    def __getitem__(self, index):
        image = cv2.imread("a")
        ids = self.tok.encode("x").ids
        both = self.tok.encode(open("a").read())
        with lock:
            pass
        with open("f") as file:
            return file.read()
def batches():
    yield 1
"""


def test_the_line_that_calls_a_library_in_c_is_read(tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text(SCRIPT)
    sources = SourceFiles()

    def calls(line: int) -> tuple[str, ...]:
        return sources.calls(Frame("Set.__getitem__", str(script), line))

    assert calls(9) == ("cv2.imread",)
    assert "tokenizers.Tokenizer.from_file.encode" in calls(10)
    assert "multiprocessing.Lock" in calls(12)
    assert "open.read" in calls(15)
    assert sources.is_generator(Frame("batches", str(script), 17))
    assert not sources.is_generator(Frame("Set.__getitem__", str(script), 9))
    lines = {9: "decode", 10: "tokenize", 11: "too_few_workers", 12: "lock"}
    for line, cause in lines.items():
        stacks = worker(2, {(Frame("Set.__getitem__", str(script), line),): 100})
        cost = decide(seen(trains(90, 10), stacks), sources.calls, sources.is_generator)
        assert cost is not None
        assert cost.cause == cause, line


def test_a_file_that_is_gone_or_no_python_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text("def (")
    sources = SourceFiles()
    assert sources.calls(Frame("f", str(script), 1)) == ()
    assert sources.calls(Frame("f", str(tmp_path / "gone.py"), 1)) == ()
    assert not sources.is_generator(Frame("f", "relative.py", 1))


COLLATES = """\
import torch
from torch.utils.data import default_collate

def clean(text):
    for letter in text:
        letter.lower()

def bpe(word):
    while True:
        word = word[1:]

class Tokenizer:
    def encode(self, text):
        for word in text.split():
            bpe(word)

def pad_rows(rows):
    for row in rows:
        row += [0]

def collate_fn(samples):
    rows = [clean(text) for text in samples]
    tokens = [Tokenizer().encode(text) for text in samples]
    pad_rows(tokens)
    batch = torch.tensor(tokens)
    mask = torch.stack([clean(row) for row in tokens])
    counts = [sum(map(len, row)) for row in tokens]
    return default_collate(batch)
"""


def _of_collate(script: Path, *inner: tuple[str, str]) -> tuple[Frame, ...]:
    """Frames of collate_fn and of what it calls: names of functions, each with its line in the script."""
    lines = COLLATES.splitlines()
    fetch = Frame("_MapDatasetFetcher.fetch", f"{TORCH}_utils/fetch.py", 55)
    return fetch, *(
        Frame(name, str(script), 1 + [one.strip() for one in lines].index(line)) for name, line in inner
    )


AT_CLEAN = ("collate_fn", "rows = [clean(text) for text in samples]")
AT_TOKENS = ("collate_fn", "tokens = [Tokenizer().encode(text) for text in samples]")


@pytest.mark.parametrize(
    ("inner", "cause"),
    [
        ((AT_CLEAN, ("clean", "letter.lower()")), "collate_fn"),
        ((AT_TOKENS, ("Tokenizer.encode", "for word in text.split():")), "tokenize"),
        ((AT_TOKENS, ("Tokenizer.encode", "bpe(word)"), ("bpe", "word = word[1:]")), "tokenize"),
        ((("collate_fn", "pad_rows(tokens)"), ("pad_rows", "row += [0]")), "collate"),
        ((("collate_fn", "batch = torch.tensor(tokens)"),), "collate"),
        (
            (("collate_fn", "mask = torch.stack([clean(row) for row in tokens])"), ("clean", "letter.lower()")),
            "collate_fn",
        ),
        ((("collate_fn", "counts = [sum(map(len, row)) for row in tokens]"),), "collate_fn"),
    ],
)
def test_what_a_collate_function_does_decides_and_not_that_it_is_one(
    inner: tuple[tuple[str, str], ...], cause: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(COLLATES)
    frames = _of_collate(script, *inner)
    stacks = [Stack(SampledProcess(2, started_by=1), ThreadId(2), (LOOP, *frames), 100)]
    cost = decide(seen(trains(90, 10), stacks, cores=16.0), SourceFiles().calls, SourceFiles().is_generator)
    assert cost is not None
    assert cost.cause == cause, cost.summary
    assert cost.place == frames[-1].text
    if cause == "collate_fn":
        assert f"100 % of the time goes to your collate function (1 worker in {frames[-1].text})" in cost.summary
        assert "__getitem__" in cost.advice
        assert "one size" not in cost.advice


def test_torchs_own_collate_function_collates_and_a_dataset_of_tokens_makes_none(tmp_path: Path) -> None:
    fetch = Frame("_MapDatasetFetcher.fetch", f"{TORCH}_utils/fetch.py", 55)
    own = Frame("collate_fn", "/home/me/train.py", 3)
    default = Frame("default_collate", f"{TORCH}_utils/collate.py", 300)
    stacks = [Stack(SampledProcess(2, started_by=1), ThreadId(2), (LOOP, fetch, own, default), 100)]
    cost = decide(seen(trains(90, 10), stacks))
    assert cost is not None
    assert cost.cause == "collate"
    reads = Frame("TokenizedDataset.__getitem__", "/home/me/data.py", 7)
    cost = decide(seen(trains(90, 10), worker(2, {(reads,): 100}), cores=16.0))
    assert cost is not None
    assert cost.cause == "too_few_workers"


def _alone(samples: int, random: Random, waits: float) -> LoadingCost:
    """A training that makes its batches itself: each sample is in the loader with a probability of `waits`."""
    loads = sum(random.random() < waits for _ in range(samples))
    itself = SampledProcess(1)
    in_loader = (TRAINS[0], Frame("_BaseDataLoaderIter.__next__", f"{TORCH}dataloader.py", 1), FETCH, OWN, PIL)
    stacks = [
        Stack(itself, ThreadId(1), in_loader, loads),
        Stack(itself, ThreadId(1), TRAINS, samples - loads),
    ]
    cost = decide(seen(stacks))
    assert cost is not None
    return cost


@pytest.mark.parametrize("samples", [30, 60, 600])
@pytest.mark.parametrize("waits", [0.5, 0.8, 0.95])
def test_the_range_of_workers_holds_the_number_that_keeps_up_whatever_the_samples(
    samples: int, waits: float
) -> None:
    """A step takes 1; a batch takes `waits` of it in one worker, and without waiting a step takes 1 - waits."""
    needed = math.ceil(waits / (1.0 - waits) - 1e-9)
    random, holds = Random(7), 0
    for _ in range(100):
        cost = _alone(samples, random, waits)
        assert cost.workers_needed is not None
        holds += cost.workers_needed <= needed <= (cost.workers_needed_most or math.inf)
    assert holds >= 92


@pytest.mark.parametrize("inner", [PIL, Frame("bpe", "/home/me/data.py", 9)])
def test_workers_are_no_advice_where_the_present_ones_queue_for_cpus(inner: Frame) -> None:
    queues = {pid: CpuTime(50.0, 50.0, "python", pid) for pid in (2, 3)}
    found = [worker(pid, {(OWN, inner): 100}) for pid in (2, 3)]
    cost = decide(seen(trains(95, 5), *found, cpu=queues, cores=8.0))
    assert cost is not None
    assert cost.workers_needed is None
    assert "more workers do not help: all CPUs are busy" in cost.advice
    assert "num_workers" not in cost.advice
    free = {pid: CpuTime(98.0, 2.0, "python", pid) for pid in (2, 3)}
    cost = decide(seen(trains(50, 50), *found, cpu=free, cores=8.0))
    assert cost is not None
    assert "set num_workers to 4 to 5 (now 2)" in cost.advice


@pytest.mark.parametrize(
    ("workers", "cores", "said"),
    [
        (2, 3.0, "set num_workers to 3 (now 2), and reduce the work per batch: 13 to 49 workers would be needed"),
        (4, 4.0, "but the job has 4 CPUs: more workers do not help; reduce the work per batch"),
        (2, 24.0, "set num_workers to 13 to 24 (now 2)"),
    ],
)
def test_the_advice_names_no_more_workers_than_there_are_cpus(workers: int, cores: float, said: str) -> None:
    busy = [worker(2 + number, {(OWN, PIL): 100}) for number in range(workers)]
    # Wilson's 95 % interval is 0.850 to 0.959 of 92 of 100 samples, and 0.963 to 1 of 100 of 100.
    cost = decide(seen(trains(92, 8), *busy, cores=cores))
    assert cost is not None
    assert said in cost.advice

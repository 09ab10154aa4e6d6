"""The hub: one snapshot from many sources, at a steady rate, whatever happens around it."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.base.periodic_thread import PeriodicThread, last_tick
from collectors.base.source import Feed, GpuChoice, GpuReading, GpuUse, RanksReading
from collectors.gpu.selection import GpuSelection, with_whole_uuids
from collectors.hub import Hub, Sources, live_sources, next_round, sampling_delay
from llmtop.errors import UnusableInput
from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Process, Rank, Snapshot, Step, to_json
from llmtop.rules.engine import Rules
from tests.support.processes import core_waits, wait_for, waited_since
from tests.support.snapshots import gpu, rank

T = TypeVar("T")


class Given(Generic[T]):
    """A source that has what it was given."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.started = self.closed = 0

    def start(self) -> None:
        self.started += 1

    def set_interval(self, seconds: float) -> None:
        self.interval = seconds

    def latest(self) -> T:
        return self.value

    def read_at(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self.closed += 1


class GivenRanks(Given[RanksReading]):
    def is_settled(self) -> bool:
        return True

    def pids(self) -> tuple[int, ...]:
        return tuple(one.pid for one in self.value.ranks)


class Machine:
    """Four sources and the hub over them."""

    def __init__(self, interval: float = 0.05, **hub: object) -> None:
        self.gpu = Given(GpuReading(gpus=tuple(gpu(i, sampled_at=1.0) for i in range(4)), driver_version="580"))
        self.host = Given(Host(name="node", cpu_pct=5.0))
        self.processes: Given[tuple[Process, ...]] = Given(())
        self.ranks = GivenRanks(RanksReading())
        self.rules, self.paces = hub.pop("rules", lambda snapshot: snapshot), hub.pop("paces_trainings", False)
        self.hub = Hub(self.sources, interval=interval, **hub)  # type: ignore[arg-type]  # what a test passes

    def sources(self, interval: float) -> Sources:
        self.made_for = interval
        given = (self.gpu, self.host, self.processes, self.ranks, self.rules)
        return Sources(*given, paces_trainings=self.paces)  # type: ignore[arg-type]


def test_a_snapshot_holds_what_all_sources_know() -> None:
    machine = Machine()
    machine.gpu.value = replace(machine.gpu.value, notes=("gpu note",), cuda_version="13.0")
    machine.ranks.value = RanksReading(ranks=(rank(7),), notes=("ranks note",))
    machine.processes.value = (Process(pid=7),)
    snapshot = machine.hub.poll()
    assert [one.index for one in snapshot.gpus] == [0, 1, 2, 3]
    assert snapshot.ranks[0].pid == snapshot.processes[0].pid == 7
    assert snapshot.host.cpu_pct == 5.0
    assert (snapshot.host.driver_version, snapshot.host.cuda_version) == ("580", "13.0")
    assert snapshot.host.notes == ("gpu note", "ranks note")
    assert snapshot.source == "live"
    assert abs(snapshot.time - time.time()) < 60


def test_rules_then_taps_see_each_snapshot_in_that_order() -> None:
    alert = Alert(id="stalled", severity="info", since=0.0, summary="")
    seen: list[Snapshot] = []

    def tap(snapshot: Snapshot) -> Snapshot:
        seen.append(snapshot)
        return snapshot

    machine = Machine(rules=lambda snapshot: replace(snapshot, alerts=(alert,)), stages=[tap])
    assert machine.hub.poll().alerts == (alert,)
    assert seen[0].alerts == (alert,)


def test_a_fault_in_the_rules_is_said_and_the_figures_go_on() -> None:
    def broken(_snapshot: Snapshot) -> Snapshot:
        raise KeyError("power")

    snapshot = Machine(rules=broken).hub.poll()
    assert len(snapshot.gpus) == 4
    assert "KeyError('power')" in snapshot.host.notes[-1]


def test_a_note_with_bytes_that_are_no_text_can_be_written_as_json() -> None:
    machine = Machine()
    machine.ranks.value = RanksReading(notes=("/tmp/\udcff is a symbolic link",))
    assert b"/tmp/? is a symbolic link" in to_json(machine.hub.poll())


def test_rounds_come_until_closed_and_then_no_more() -> None:
    machine = Machine(0.02)
    feed: Feed = machine.hub
    got: list[Snapshot] = []
    feed.start(got.append)
    wait_for(lambda: len(got) >= 5)
    feed.close()
    count = len(got)
    time.sleep(0.1)
    assert len(got) == count
    for source in (machine.gpu, machine.host, machine.processes, machine.ranks):
        assert (source.started, source.closed) == (1, 1)


class Stage:
    """A stage that has started something."""

    def __init__(self) -> None:
        self.ended = 0

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def end(self) -> None:
        self.ended += 1


def test_stages_before_and_after_the_rules_are_ended() -> None:
    machine, before, after = Machine(), Stage(), Stage()

    def sources(interval: float) -> Sources:
        return machine.sources(interval)._replace(before_rules=(before,))

    hub = Hub(sources, interval=0.02, stages=[after])
    hub.poll()
    hub.close()
    assert (before.ended, after.ended) == (1, 1)


def test_the_first_snapshot_waits_for_the_processes_that_use_a_gpu() -> None:
    machine = Machine()
    machine.gpu.value = replace(
        machine.gpu.value, gpus=(), notes=("none",), uses=(GpuUse(pid=7, gpu_uuid="GPU-0"),)
    )
    threading.Timer(0.3, setattr, (machine.processes, "value", (Process(pid=7),))).start()
    assert [one.pid for one in machine.hub.first_snapshot(60.0).processes] == [7]


def test_a_slow_consumer_gets_fewer_snapshots_and_never_two_at_once() -> None:
    machine = Machine(0.01)
    busy = threading.Lock()
    overlapped: list[bool] = []
    starts: list[float] = []

    def slow(_snapshot: Snapshot) -> None:
        overlapped.append(not busy.acquire(blocking=False))
        starts.append(time.monotonic())
        time.sleep(0.1)
        busy.release()

    machine.hub.start(slow)
    wait_for(lambda: len(starts) >= 4)
    machine.hub.close()
    assert not any(overlapped)
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(starts))


@given(
    interval=st.sampled_from([0.1, 0.5, 1.0, 60.0]),
    work=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=50),
)
def test_rounds_stay_on_the_grid_however_long_each_takes(interval: float, work: list[float]) -> None:
    due = now = 0.0
    for share in work:
        now += share * interval
        following = next_round(due, now, interval)
        assert following > due
        place = (following - sampling_delay(interval)) / interval
        assert place == pytest.approx(round(place), abs=1e-6)
        # Never early, and never more than one interval behind: what was missed is left out.
        assert now - following < interval * (1 + 1e-9)
        now = max(now, following)
        due = following


@pytest.mark.parametrize(
    ("now", "following"), [(10.3, 11.2), (11.1, 11.2), (11.9, 11.2), (13.1, 12.2), (14.0, 13.2)]
)
def test_of_the_rounds_that_were_missed_the_latest_is_held(now: float, following: float) -> None:
    assert next_round(10.2, now, 1.0) == pytest.approx(following)


def _asleep() -> tuple[Machine, list[Snapshot]]:
    """A hub that sleeps for an hour after its first snapshot, and its snapshots."""
    machine = Machine(3600.0, whole=True)
    machine.gpu.value = GpuReading(notes=("no NVIDIA driver here",))
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: got)
    time.sleep(0.2)
    return machine, got


def test_a_new_interval_holds_from_the_next_snapshot_on() -> None:
    machine, got = _asleep()
    machine.hub.set_interval(0.02)
    wait_for(lambda: len(got) > 3)
    assert machine.hub.interval == 0.02
    machine.hub.close()


def test_a_new_interval_ends_one_sleep_and_not_those_after_it() -> None:
    machine, _ = _asleep()
    (thread,) = (one for one in threading.enumerate() if one.name == "llmtop-hub")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    machine.hub.set_interval(1800.0)
    time.sleep(0.3)
    began = time.clock_gettime(clock)
    time.sleep(1.0)
    assert time.clock_gettime(clock) - began < 0.1, "a thread that does not sleep computes whenever it may"
    machine.hub.close()


def test_sources_are_made_by_the_thread_that_runs_them_at_the_rate_of_then() -> None:
    machine = Machine(5.0)
    machine.hub.set_interval(0.5)
    assert machine.gpu.started == 0
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: got)
    assert machine.made_for == 0.5
    assert machine.gpu.started == 1
    machine.hub.set_interval(0.25)
    assert machine.gpu.interval == 0.25
    machine.hub.close()


def test_the_first_snapshot_waits_for_the_drivers_first_answer(patient_hub: None) -> None:
    machine = Machine(60.0)
    there, machine.gpu.value = machine.gpu.value, GpuReading()
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    time.sleep(0.1)
    assert not got
    machine.gpu.value = there
    wait_for(lambda: got)
    assert len(got[0].gpus) == 4
    machine.hub.close()


def test_a_driver_that_never_answers_does_not_keep_the_rest_back() -> None:
    machine = Machine(60.0)
    machine.gpu.value = GpuReading()
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: got)
    assert got[0].host.cpu_pct == 5.0
    machine.hub.close()


def test_closing_ends_the_sleep_before_the_next_round() -> None:
    machine = Machine(60.0)
    machine.gpu.value = GpuReading(notes=("no NVIDIA driver here",))
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: got)
    machine.hub.close()
    assert "llmtop-hub" not in {thread.name for thread in threading.enumerate()}


def test_sources_that_cannot_be_made_are_said_on_the_screen() -> None:
    def broken(_interval: float) -> Sources:
        raise ImportError("no module named pynvml")

    got: list[Snapshot] = []
    hub = Hub(broken)
    hub.start(got.append)
    wait_for(lambda: got)
    assert "pynvml" in got[0].host.notes[0]
    hub.close()


class Sampling(Given[GpuReading]):
    """A GPU source that has a new sample at every fourth look, beside GPUs that never have one."""

    def __init__(self, *others: Gpu) -> None:
        super().__init__(GpuReading())
        self._others, self._looks = others, 0

    def latest(self) -> GpuReading:
        sample = 1 + self._looks // 4
        self._looks += 1
        return GpuReading(gpus=(gpu(0, sampled_at=float(sample), util_pct=10.0 * sample), *self._others))


@pytest.mark.parametrize("others", [(), (gpu(1, error="lost"),)], ids=["each has two", "one is lost"])
def test_once_waits_for_a_second_sample_of_each_gpu(others: tuple[Gpu, ...]) -> None:
    machine = Machine()
    machine.gpu = Sampling(*others)
    assert machine.hub.first_snapshot(20.0).gpus[0].util_pct == 20.0
    machine.hub.close()


def test_once_waits_for_the_processor_share_of_each_training() -> None:
    machine = Machine()
    machine.gpu.value = GpuReading(notes=("no NVIDIA driver here",))
    machine.ranks.value = RanksReading(ranks=(rank(7), rank(8)))
    machine.processes.value = (Process(pid=7, started_at=1.0),)

    def go_on() -> None:
        time.sleep(0.2)
        machine.processes.value = (Process(pid=7, started_at=1.0, cpu_pct=5.0),)
        time.sleep(0.2)
        machine.processes.value += (Process(pid=8), Process(pid=9))

    threading.Thread(target=go_on).start()
    assert [one.pid for one in machine.hub.first_snapshot(20.0).processes] == [7, 8, 9]
    machine.hub.close()


def test_once_shows_no_machine_without_gpus_before_the_driver_has_answered(patient_hub: None) -> None:
    machine = Machine()
    machine.gpu.value = GpuReading()
    got: list[Snapshot] = []
    once = threading.Thread(target=lambda: got.append(machine.hub.first_snapshot(0.05)))
    once.start()
    time.sleep(0.3)
    assert not got
    machine.gpu.value = GpuReading(notes=("the driver has not answered",))
    once.join(100)
    assert got[0].host.notes == ("the driver has not answered",)
    machine.hub.close()


def test_once_gives_what_there_is_at_its_deadline() -> None:
    machine = Machine()
    machine.host.value = Host(name="node")
    assert machine.hub.first_snapshot(0.1).host.cpu_pct is None
    machine.hub.close()


def test_gpus_can_be_chosen_while_it_runs() -> None:
    machine = Machine(selection=GpuSelection.parse("0,2"))
    machine.processes.value = (
        Process(pid=1, gpu_uuid=gpu(1).uuid),
        Process(pid=2, gpu_uuid=gpu(2).uuid),
        Process(pid=3),
    )
    assert isinstance(machine.hub, GpuChoice)
    snapshot = machine.hub.poll()
    assert [one.index for one in snapshot.gpus] == [0, 2]
    assert [process.pid for process in snapshot.processes] == [2, 3]
    machine.ranks.value = RanksReading(
        ranks=(rank(9, gpu_uuid=gpu(3).uuid), rank(8, gpu_uuid=gpu(1).uuid, state="gone"))
    )
    machine.hub.select("attached")
    assert machine.hub.selection == "attached"
    assert [one.index for one in machine.hub.poll().gpus] == [3]
    machine.hub.select(gpu(1).uuid[:10])
    assert [one.index for one in machine.hub.poll().gpus] == [0, 1, 2, 3]  # the beginning that all of them share
    machine.hub.select("all")
    assert len(machine.hub.poll().gpus) == 4


def test_what_was_asked_for_and_is_not_there_is_said() -> None:
    machine = Machine(selection=GpuSelection.parse("1,7"))
    snapshot = machine.hub.poll()
    assert [one.index for one in snapshot.gpus] == [1]
    assert "7" in snapshot.host.notes[0]
    machine.hub.select("attached")
    snapshot = machine.hub.poll()
    assert len(snapshot.gpus) == 4
    assert "all are shown" in snapshot.host.notes[0]


def test_a_mig_instance_goes_with_its_gpu_and_alone_by_its_uuid() -> None:
    parent = gpu(0)
    instances = tuple(
        replace(gpu(0), uuid=f"MIG-{letter}" * 3, mig_parent_uuid=parent.uuid) for letter in ("a", "b")
    )
    reading = (parent, *instances, gpu(1))
    chosen, _ = GpuSelection.parse("0").choose(reading, ())
    assert chosen == reading[:3]
    chosen, _ = GpuSelection.parse("MIG-b").choose(reading, ())
    assert chosen == (instances[1],)


def _mig(number: int, letter: str) -> Gpu:
    return replace(
        gpu(0),
        uuid=f"MIG-{letter}1b2c3d4",
        mig_parent_uuid=gpu(0).uuid,
        mig_index=number - 1,
        mig_gpu_instance=number,
        mig_compute_instance=0,
    )


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (f"MIG-{gpu(0).uuid}/1/0", ["MIG-a1b2c3d4"]),
        (f"MIG-{gpu(0).uuid}/2/0,MIG-a1b2", ["MIG-a1b2c3d4", "MIG-b1b2c3d4"]),
        ("MIG-b1b2", ["MIG-b1b2c3d4"]),
    ],
)
def test_mig_instances_are_found_by_every_name_that_cuda_takes(
    visible: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = (gpu(0), _mig(1, "a"), _mig(2, "b"), gpu(1))
    chosen, notes = GpuSelection.default().choose(gpus, ())
    assert [one.uuid for one in chosen] == shown
    assert "only GPU MIG-" in notes[0]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        (gpu(1).uuid, gpu(1).uuid),
        (f"MIG-{gpu(0).uuid}/2/0", "MIG-b1b2c3d4"),
        ("MIG-a1", "MIG-a1b2c3d4"),
        ("MIG-", "MIG-"),  # of two, so it stays what the training said
        ("GPU-ffff", "GPU-ffff"),
    ],
)
def test_a_training_is_joined_with_its_gpu_by_a_short_name(name: str, whole: str) -> None:
    ranks = (Rank(pid=5, host="h", gpu_uuid=name), Rank(pid=6, host="h"))
    joined = with_whole_uuids(ranks, (gpu(0), _mig(1, "a"), _mig(2, "b"), gpu(1)))
    assert [rank.gpu_uuid for rank in joined] == [whole, None]


def test_an_index_stays_the_gpu_that_it_was() -> None:
    selection = GpuSelection.parse("1")
    assert [one.uuid for one in selection.choose((gpu(0), gpu(1), gpu(2)), ())[0]] == [gpu(1).uuid]
    lost = replace(gpu(1), error="GPU is lost")
    moved = replace(gpu(2), index=1)
    assert selection.choose((gpu(0), lost, moved), ())[0] == (lost,)


@pytest.mark.parametrize("text", ["", "x", "0,", "-1", "0;1", "GPU-", "GPU-xyz", "0,all"])
def test_a_selection_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnusableInput, match="nvidia-smi -L"):
        GpuSelection.parse(text)


@pytest.mark.parametrize(
    ("visible", "shown", "said"),
    [
        (None, [0, 1, 2, 3], ""),
        ("2,0", [0, 2], "only GPU 2,0 is shown, as CUDA_VISIBLE_DEVICES says"),
        (" 1 ,x,3", [1], "only GPU 1 is shown"),
        ("0,1,2,3", [0, 1, 2, 3], ""),
        ("", [0, 1, 2, 3], "lets programs started here use no GPU; all are shown"),
        ("-1", [0, 1, 2, 3], "lets programs started here use no GPU; all are shown"),
        ("NoDevFiles", [0, 1, 2, 3], "lets programs started here use no GPU; all are shown"),
        (
            "0,99,1",
            [0],
            "only GPU 0 is shown, as CUDA_VISIBLE_DEVICES says (CUDA stops at 99, which is no GPU here)",
        ),
        ("99", [0, 1, 2, 3], "CUDA_VISIBLE_DEVICES (99) lets programs started here use no GPU; all are shown"),
        ("0,0", [0, 1, 2, 3], "(0,0) lets programs started here use no GPU"),
        ("1gpu,+2", [1, 2], "only GPU 1,2 is shown"),
        (f"{gpu(2).uuid},1", [2], f"only GPU {gpu(2).uuid} is shown"),
        (f"1,{gpu(2).uuid}", [1], "only GPU 1 is shown"),
        (f"{gpu(1).uuid[:10]}", [0, 1, 2, 3], "lets programs started here use no GPU"),  # four begin so
        (f"{gpu(3).uuid},GPU-ffffffff", [3], "(CUDA stops at GPU-ffffffff, which is no GPU here)"),
    ],
)
def test_the_shells_own_choice_of_gpus_is_the_default_and_said(
    visible: str | None, shown: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    snapshot = Machine(selection=GpuSelection.default()).hub.poll()
    assert [one.index for one in snapshot.gpus] == shown
    assert said in " ".join(snapshot.host.notes)
    assert bool(said) == any("CUDA_VISIBLE_DEVICES" in note for note in snapshot.host.notes)


class Beating(Given[GpuReading]):
    """A GPU source that reads at the instants of its beat, whatever runs the calls, and takes a moment for it."""

    def __init__(self, interval: float, takes: float) -> None:
        super().__init__(GpuReading())
        self._takes = takes
        self.beat = PeriodicThread("test", self._round, interval)

    def _round(self) -> None:
        at = time.time()
        time.sleep(self._takes)
        self.value = GpuReading(gpus=(gpu(0, sampled_at=at),))

    def start(self) -> None:
        self.beat.start()

    def close(self) -> None:
        self.beat.stop()


@pytest.mark.slow(
    "two intervals of four seconds; test_dear_rounds_come_with_every_instant_of_a_long_interval has the polls"
)
@pytest.mark.parametrize(
    "takes", [pytest.param(0.0, marks=pytest.mark.slow("polls that take no time are the easier case")), 0.4]
)
def test_at_a_long_interval_values_are_of_the_instant_that_they_are_stamped_with(takes: float) -> None:
    interval = 4.0
    machine = Machine(interval)
    machine.gpu = Beating(interval, takes)
    between_two = last_tick(time.monotonic() + 2.0, interval) + interval - 2.0
    time.sleep(max(0.0, between_two - time.monotonic()))
    got: list[Snapshot] = []
    before = core_waits()
    machine.hub.start(got.append)
    begun = time.monotonic()
    wait_for(lambda: [one for one in got if (one.monotonic or 0) > begun + interval])
    waited = waited_since(before)  # read here, as it is not known of a thread that has ended
    machine.hub.close()
    ages = [one.time - (one.gpus[0].sampled_at or 0) for one in got if one.gpus]
    assert max(ages) < 1.8 + waited, f"{ages}: of another instant they would be 2 s old"


def test_a_round_waits_for_its_gpu_sample_and_no_longer() -> None:
    interval, takes = 1.5, 0.4
    machine = Machine(interval)
    machine.gpu = Beating(interval, takes)
    got: list[Snapshot] = []
    begun = time.monotonic()
    machine.hub.start(got.append)

    def ages() -> list[float]:
        late = [one for one in got if (one.monotonic or 0) > begun + 2 * interval]  # before, rates were waited for
        return [one.time - (one.gpus[0].sampled_at or 0) for one in late if one.gpus]

    # A busy machine may delay some: without the wait all are 1.7 s old, with one that is too long 0.8 s.
    wait_for(lambda: any(takes <= age < 0.7 for age in ages()), 60, "a round with its own sample")
    machine.hub.close()


@pytest.mark.slow(
    "eleven snapshots in real time; test_a_driver_that_never_answers_does_not_keep_the_rest_back finds much of it"
)
def test_a_gpu_that_gives_no_new_sample_does_not_keep_the_others_waiting_for_long() -> None:
    machine = Machine(1.5)
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: len(got) > 20 or len([one for one in got if len(one.gpus) == 4]) >= 11)
    machine.hub.close()
    late = [(one.monotonic or 0) - last_tick(one.monotonic or 0, 1.5) for one in got[-2:]]
    assert all(sampling_delay(1.5) <= seconds for seconds in late)


def test_a_screen_has_rates_as_soon_as_they_are_there_and_something_before(patient_hub: None) -> None:
    machine = Machine(3600.0)
    machine.host.value = Host(name="node")
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: got)
    assert got[0].host.cpu_pct is None
    machine.host.value = Host(name="node", cpu_pct=5.0)
    machine.gpu.value = GpuReading(gpus=tuple(gpu(i, sampled_at=2.0) for i in range(4)))
    wait_for(lambda: got[-1].host.cpu_pct == 5.0 and got[-1].gpus[0].sampled_at == 2.0)
    machine.hub.close()


@pytest.mark.parametrize("given", [{"whole": True}, {"stages": [lambda one: one]}], ids=["whole", "stages"])
def test_a_recording_begins_with_a_snapshot_that_has_rates(given: dict[str, object], patient_hub: None) -> None:
    machine = Machine(3600.0, **given)
    machine.host.value = Host(name="node")
    got: list[Snapshot] = []
    machine.hub.start(got.append)
    wait_for(lambda: machine.gpu.started)
    machine.gpu.value = GpuReading(gpus=tuple(gpu(i, sampled_at=2.0) for i in range(4)))
    machine.host.value = Host(name="node", cpu_pct=5.0)
    wait_for(lambda: got)
    machine.hub.close()
    assert got[0].host.cpu_pct == 5.0
    assert got[0].gpus[0].sampled_at == 2.0


def test_of_all_users_no_stage_goes_by_what_a_process_says(tmp_path: Path) -> None:
    """Where NCCL is asked stands in a process's environment, which is another user's word."""
    stages = [
        {type(stage).__name__ for stage in live_sources(1.0, tmp_path, all_users=all_users).before_rules}
        for all_users in (False, True)
    ]
    assert stages[0] - stages[1] == {"NcclRas", "LoaderCosts", "RunReferences"}
    assert stages[1] == {"GpuBusy", "DcgmActivity"}


def test_what_runs_did_is_kept_only_where_that_is_asked_for(tmp_path: Path) -> None:
    assert live_sources(1.0, tmp_path).keep_runs is None
    assert live_sources(1.0, tmp_path, keep_runs=True).keep_runs is not None


def test_of_all_users_the_trainings_of_all_users_are_looked_for(tmp_path: Path) -> None:
    kinds = [type(live_sources(1.0, tmp_path, all_users=which).ranks).__name__ for which in (False, True)]
    assert kinds == ["StepsSource", "AllUsersSource"]


@pytest.mark.parametrize(("interval", "delay"), [(0.1, 0.025), (0.4, 0.1), (60.0, 0.2)])
def test_a_snapshot_comes_a_moment_after_its_samples_and_at_most_a_quarter_of_the_interval(
    interval: float, delay: float
) -> None:
    assert sampling_delay(interval) == pytest.approx(delay)


@pytest.mark.parametrize("rates_known_at_once", [True, False])
def test_an_alert_of_a_screen_is_as_old_as_that_of_the_only_snapshot(rates_known_at_once: bool) -> None:
    """Both know 60 s of steps that wait for data, of before they started; the steps come once."""
    now, ages = time.time(), []
    steps = tuple(
        Step(
            index=5000 + number,
            started_at=now - 60 + 0.5 * number,
            seconds=0.5,
            interval_seconds=0.5,
            phases=(Phase(name="dataload", host_seconds=0.4), Phase(name="forward", host_seconds=0.1)),
        )
        for number in range(120)
    )
    trained = rank(
        host="node",
        state="running",
        kind="step",
        step=5119,
        attached_at=now - 900,
        last_step_at=now,
        new_steps=steps,
    )
    for is_screen in (False, True):
        machine = Machine(0.2, rules=Rules().apply)
        machine.gpu.value = GpuReading(notes=("no GPU",))
        machine.ranks = SentOnce(RanksReading(ranks=(trained,)))
        machine.processes.value = (Process(pid=trained.pid, cpu_pct=50.0),)
        machine.host.value = Host(name="node", cpu_pct=5.0 if rates_known_at_once or not is_screen else None)
        if not is_screen:
            got = [machine.hub.first_snapshot()]
        else:
            got = []
            machine.hub.start(got.append)
            wait_for(lambda seen=got: seen)
            machine.host.value = Host(name="node", cpu_pct=5.0)
            wait_for(lambda seen=got: seen[-1].host.cpu_pct is not None and seen[-1].alerts)
        machine.hub.close()
        assert sum(len(one.ranks[0].new_steps) for one in got) == 120, "no step is handed out twice"
        (alert,) = got[-1].alerts
        assert alert.id == "input_bound"
        ages.append(now - alert.since)
    assert ages[0] == pytest.approx(60.0, abs=13.0)
    assert ages[1] == pytest.approx(ages[0], abs=6.0), "one snapshot in five seconds is judged"


class SentOnce(GivenRanks):
    """Trainings whose new steps are in the first reading alone."""

    def latest(self) -> RanksReading:
        now, self.value = (
            self.value,
            replace(self.value, ranks=tuple(replace(one, new_steps=()) for one in self.value.ranks)),
        )
        return now


@pytest.mark.parametrize(("interval", "reads"), [(2.0, 11), (0.7, 30), (0.6, 34), (0.5, 21), (0.4, 26), (0.1, 21)])
def test_a_fast_screen_reads_from_trainings_once_a_second(
    interval: float, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, got, machine = [100.0], list[Rank](), Machine(interval, paces_trainings=True)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for number in range(1 + round(20 / interval)):
        made = (Step(index=number, started_at=float(number), seconds=0.1),)
        machine.ranks.value = RanksReading(ranks=(rank(7, step=number, new_steps=made),))
        got.append(machine.hub.poll(is_paced=True).ranks[0])
        now[0] += interval
    fresh = [(one.step, one.new_steps[0].index) for one in got if one.new_steps]
    assert len(fresh) == len({step for step, index in fresh if step == index}) == reads
    assert {one.pid for one in got} == {7}

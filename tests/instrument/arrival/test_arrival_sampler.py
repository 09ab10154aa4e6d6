"""Which steps are stamped, by which clocks, and what is done where that cannot be."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from llmtop.instrument.arrival import sampler as sampler_module
from llmtop.instrument.arrival.sampler import EVERY_NS, Sampler
from llmtop.instrument.gpu import stream_waits
from llmtop.instrument.gpu.stream_waits import StreamWaits
from llmtop.instrument.steps.phase_tree import PhaseNode
from tests.support.installed import needs
from tests.support.virtual_gpu import MS, US, VirtualEvent, VirtualGpu

needs("torch")
pytestmark = pytest.mark.torch

FORWARD, BACKWARD, COMMUNICATION = (
    PhaseNode(name, None, name, 2) for name in ("forward", "backward", "communication")
)


class Replica:
    """What is trained: a parameter that is ready first, one that is never, one that is ready last."""

    group, gathers, is_there = "2-0", False, True

    def __init__(self) -> None:
        import torch

        self.first, self.unused, self.last = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
        self.at_the_end = self.first

    def candidates(self) -> list[Any]:
        return [self.first, self.unused, self.last]

    def backward(self) -> None:
        """The one whose gradient is ready first is at the end of the graph."""
        (((self.last * 2).relu() * 3) * self.at_the_end).sum().backward()


class Gpu(VirtualGpu):
    """With a stream that nothing is on."""

    shares_one_queue = False

    def record_aside(self, event: VirtualEvent) -> bool:
        self.record(event)
        event.passed_ns = self.idle_from_ns if self.shares_one_queue else self.now_ns
        return True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(sampler_module, "perf_counter_ns", gpu.host_ns)
    return gpu


def one_step(sampler: Sampler, index: int, gpu: Gpu | None = None, kernel_ms: int = 10) -> bool:
    """A step after that of `index`, if it is sampled; forward and backward take the GPU so many ms each."""
    begun = sampler.begin_if_due(index, float(EVERY_NS))
    for node in (FORWARD, BACKWARD):
        if begun:
            sampler.begins(node)
        if gpu is not None:
            gpu.launch(kernel_ms * MS)
        if node is BACKWARD:
            sampler.replica.backward()
        if begun:
            sampler.ends(node)
    sampler.end_sample(index + 1)
    if gpu is not None:
        gpu.synchronise()
    sampler.read()
    return begun


def samples(sampler: Sampler) -> list[Any]:
    return sampler.samples.read(0)[1]


def test_the_gradients_that_are_ready_first_and_last_are_found_and_hooked_in_backward_alone() -> None:
    replica = Replica()
    sampler = Sampler(replica)
    for index in range(3):
        assert one_step(sampler, index)
        assert not any(one._post_accumulate_grad_hooks for one in replica.candidates())
    found = samples(sampler)
    assert "first_gradient" not in found[0].host_ns, "which they are was found out in that step"
    for sample in found[1:]:
        assert sample.host_ns["backward"] < sample.host_ns["first_gradient"] < sample.host_ns["last_gradient"]
        assert sample.host_ns["last_gradient"] < sample.host_ns["end"]
    assert [sample.step for sample in found] == [1, 2, 3]


def test_a_parameter_that_is_not_trained_any_more_is_replaced() -> None:
    replica = Replica()
    sampler = Sampler(replica)
    one_step(sampler, 0)
    one_step(sampler, 1)
    replica.at_the_end = replica.unused
    for index in range(2, 6):
        one_step(sampler, index)
    assert [len(sample.host_ns) for sample in samples(sampler)] == [3, 5, 4, 3, 5, 5]
    assert not sampler.is_lost


def test_what_trains_no_more_is_given_up() -> None:
    sampler = Sampler(Replica())
    one_step(sampler, 0)
    one_step(sampler, 1)
    sampler.replica.backward = lambda: None
    for index in range(2, 40):
        one_step(sampler, index)
    assert sampler.is_lost


@pytest.mark.parametrize("shares_one_queue", [False, True])
def test_gpu_stamps_are_on_the_hosts_clock_where_an_event_is_passed_at_once(
    gpu: Gpu, shares_one_queue: bool
) -> None:
    gpu.shares_one_queue = shares_one_queue
    sampler = Sampler(Replica(), gpu)
    one_step(sampler, 0, gpu)
    gpu.launch(30 * MS)  # of the step before, so that the host is ahead
    begun_ns = gpu.now_ns
    one_step(sampler, 1, gpu)
    sample = samples(sampler)[-1]
    assert sample.on_host_clock is not shares_one_queue
    assert sample.gpu_ns["backward"] - sample.gpu_ns["forward"] == pytest.approx(10 * MS, abs=20 * US)
    assert sample.gpu_ns["end"] - sample.gpu_ns["backward"] == pytest.approx(10 * MS, abs=20 * US)
    if sample.on_host_clock:
        assert sample.gpu_ns["forward"] - begun_ns == pytest.approx(30 * MS, abs=100 * US)
        assert sample.host_ns["forward"] - begun_ns < 1 * MS


def test_while_a_graph_is_captured_nothing_is_asked_or_recorded(gpu: Gpu) -> None:
    sampler = Sampler(Replica(), gpu)
    one_step(sampler, 0, gpu)
    gpu.capturing = True
    one_step(sampler, 1, gpu)
    gpu.capturing = False
    one_step(sampler, 2, gpu)
    assert gpu.asked_while_capturing == 0
    assert [sample.step for sample in samples(sampler)] == [1, 3]


def test_a_device_that_fails_fails_in_no_call_of_ours(gpu: Gpu) -> None:
    sampler = Sampler(Replica(), gpu)
    one_step(sampler, 0, gpu)
    assert sampler.begin_if_due(1, float(EVERY_NS))
    gpu.failing = True
    sampler.begins(FORWARD)
    sampler.begins(BACKWARD)
    sampler.replica.backward()
    sampler.ends(BACKWARD)
    gpu.failing = False
    sampler.end_sample(2)
    sampler.read()
    assert [sample.step for sample in samples(sampler)] == [1]


def test_waits_for_other_ranks_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 100))
    monkeypatch.setattr(sampler_module, "perf_counter_ns", lambda: next(now))
    sampler = Sampler(Replica())
    sampler.begin_if_due(0, float(EVERY_NS))
    for _ in range(3):
        sampler.begins(COMMUNICATION)
        sampler.ends(COMMUNICATION)
    sampler.begins(FORWARD)
    sampler.end_sample(1)
    sampler.read()
    assert samples(sampler)[0].waited_host_ns == 300


def chosen(step_ns: float, steps: int = 4096, *, first_ns: float | None = None) -> set[int]:
    """The steps that a rank samples whose steps take so long, the first 40 perhaps another time."""
    sampler = Sampler(Replica())
    found = set()
    index = 0
    while index < steps:
        if sampler.begin_if_due(index, first_ns if first_ns is not None and index < 40 else step_ns):
            found.add(index + 1)
            sampler.end_sample(index + 1)
            index += 1
        else:
            index += sampler.rest(index)
    return found


@pytest.mark.parametrize("step_ms", [0.3, 2.0, 13.0, 60.0, 99.0, 1000.0])
def test_ranks_sample_the_same_steps_though_each_finds_another_length(step_ms: float) -> None:
    one, other = chosen(step_ms * MS), chosen(step_ms * MS * 1.07)
    fewer, more = sorted((one, other), key=len)
    assert fewer <= more
    assert len(more) <= 2 * len(fewer) + 1
    most = 4096 * step_ms * MS / (0.8 * EVERY_NS)
    assert len(more) <= max(most, 4) + 1 or step_ms >= 0.8 * EVERY_NS / MS


@pytest.mark.parametrize("first_ms", [1.0, 8.0, 300.0])
@pytest.mark.parametrize("step_ms", [3.6, 14.3, 28.6, 57.0])
def test_ranks_whose_first_steps_differed_come_to_sample_the_same_steps(step_ms: float, first_ms: float) -> None:
    later = {index for index in chosen(step_ms * MS, first_ns=first_ms * MS) if index > 2048}
    assert later == {index for index in chosen(step_ms * MS) if index > 2048}


class Stream:
    """Stands in for torch.cuda.Stream."""

    waited: ClassVar[list[tuple[Any, Any]]] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append((self, event))


class Cuda:
    """Stands in for torch.cuda."""

    Stream = Stream

    def __init__(self) -> None:
        self.current = Stream()

    def current_stream(self) -> Stream:
        return self.current


class Recorded(VirtualEvent):
    """An event that a stream records."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def record(self, _stream: Stream) -> None:
        self._gpu.record(self)


@pytest.fixture
def waits(gpu: Gpu) -> Iterator[tuple[StreamWaits, Cuda]]:
    cuda, own = Cuda(), Stream.__dict__["wait_event"]
    gpu.new = lambda: Recorded(gpu)
    Stream.waited.clear()
    yield StreamWaits(cuda, gpu, lambda: False), cuda
    assert Stream.__dict__["wait_event"] is own, "it is what it was"


def test_only_waits_of_the_computing_stream_are_told(waits: tuple[StreamWaits, Cuda]) -> None:
    told, cuda = waits
    told.begin()
    cuda.current.wait_event("gathered")
    Stream().wait_event("another's")
    cuda.current.wait_event(event="by name")
    pairs = told.end()
    assert pairs is not None
    assert len(pairs) == 2
    assert [event for _, event in Stream.waited] == ["gathered", "another's", "by name"], "all are waited for"
    cuda.current.wait_event("later")
    assert told.end() is None


def test_a_method_that_somebody_else_has_put_there_meanwhile_stays(waits: tuple[StreamWaits, Cuda]) -> None:
    told, cuda = waits
    own = Stream.__dict__["wait_event"]
    told.begin()

    def others(stream: Stream, event: Any) -> None:
        own(stream, event)

    Stream.wait_event = others
    assert told.end() == []
    assert Stream.__dict__["wait_event"] is others
    Stream.wait_event = own
    cuda.current.wait_event("as ever")


def test_waits_on_a_device_that_fails_are_waited_for_and_not_told(
    gpu: Gpu, waits: tuple[StreamWaits, Cuda]
) -> None:
    told, cuda = waits
    told.begin()
    gpu.failing = True
    cuda.current.wait_event("gathered")
    gpu.failing = False
    assert told.end() is None
    assert Stream.waited == [(cuda.current, "gathered")]


def test_that_an_event_waits_for_room_in_the_queue_is_no_cost(
    waits: tuple[StreamWaits, Cuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, cuda = waits
    readings = iter([number * 5 * US for number in range(4)] + [number * 5 * MS for number in range(1, 81)])
    monkeypatch.setattr(stream_waits, "perf_counter_ns", lambda: next(readings))
    for _ in range(21):  # each event takes from one reading to the next
        told.begin()
        cuda.current.wait_event("gathered")
        told.end()
    assert 10 * US <= told.cost_ns <= 40 * US, "two events, each as long as one may take that does not wait"


def test_no_module_is_kept_alive() -> None:
    import torch

    from llmtop.instrument.arrival.replicas import Replica as Found
    from llmtop.instrument.pytorch.search import HeldParameter

    net = torch.nn.Linear(2, 2)
    found = Found(net, "2-0", [HeldParameter(net, "weight"), HeldParameter(net, "bias")], gathers=False)
    assert found.is_there
    assert found.candidates() == list(net.parameters())
    net.bias.requires_grad_(False)
    assert found.candidates() == [net.weight, None]
    del net
    gc.collect()
    assert not found.is_there
    assert found.candidates() == [None, None]

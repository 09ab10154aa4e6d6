"""One GPU, sampled in rounds over all GPUs; one that hangs keeps the thread, and the others get another."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext

from collectors.base.periodic_thread import PeriodicThread
from collectors.base.shared_rounds import RoundMember
from collectors.gpu.bounds import plausible_values
from collectors.gpu.first_calls_lock import FirstCallsLock
from collectors.gpu.poll_times import SETTLE_SECONDS, STALE_SECONDS
from collectors.gpu.slow_poll_schedule import separate_offset
from collectors.nvml.calls import Caller, error_text, is_lost, is_unspecific
from collectors.nvml.faults import XidEvents, memory_faults
from collectors.nvml.fields import (
    fast_values,
    memory_values,
    pcie_values,
    process_shares,
    running_processes,
    sampled_util,
    slow_values,
    system_memory_values,
)
from collectors.nvml.gpm import APART_SECONDS, Gpm, supported
from collectors.nvml.mig import Instance, find_instances
from collectors.nvml.rounds import slow_pace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from collectors.gpu.bounds import ImplausibleValues, Values
    from collectors.nvml.rounds import GpuRounds

GPM_PATIENCE = 3
"""Rounds without PCIe rates from GPM after which NVML's own are asked for."""
FAULTS_EVERY = 5
"""Memory faults are asked for in every fifth slow round."""
_NO_NAME = "GPU"
"""Name of a GPU until the driver gives one, which it is then asked for no more."""
NO_GPM = "LLMTOP_NO_GPM"
"""Set to leave GPM alone, where a driver does not survive it."""
FIRST_ROUNDS = 3
"""Rounds that no two threads are in at once. On freshly started machines with two H200s (driver 580) the monitor
died within its first second in four starts of five; the one that left a stack was in its first nvmlGpmMetricsGet,
after threads had made the first calls for both GPUs at once. With one GPU it never died."""
first_calls_lock = FirstCallsLock(patience=1.0)
"""Held in the first rounds of each GPU; after 1 s of waiting its holder counts as stuck."""
_slow_calls_lock = FirstCallsLock(patience=1.0)


class _RoundValues:
    """Values from one round of one thread, by field of `llmtop.model.snapshot.Gpu`; for MIG instances by UUID."""

    def __init__(
        self, values: Values, instances: dict[str, Values], call: Caller | None, implausible: ImplausibleValues
    ) -> None:
        """Keep the plausible values of a round; the others go into `implausible`. `call` made the calls."""
        self.implausible = implausible
        self.values = plausible_values(values, implausible)
        self.instances = {uuid: plausible_values(own, implausible) for uuid, own in instances.items()}
        self.refusals = {} if call is None else call.refusals
        self.answered = call is None or call.answered
        self.at, self.unix = time.monotonic(), time.time()
        """The end of the round: monotonic seconds, and unix seconds."""

    @classmethod
    def empty(cls) -> _RoundValues:
        """Return the sample of a thread that has made no round yet: nothing, at time 0."""
        sample = cls({}, {}, None, {})
        sample.at = sample.unix = 0.0
        return sample


class DeviceSampler:
    """Samples one GPU and its MIG instances from `start()` to `stop()`, which may follow each other again."""

    def __init__(
        self,
        handle: Any,
        index: int,
        uuid: str,
        rounds: GpuRounds,
        on_fresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to sample one GPU; no thread runs and no call is made before `start()`.

        Args:
            handle: NVML's device handle.
            index: NVML's number of the GPU, in PCI bus order; not the CUDA ordinal.
            uuid: of the GPU; key of its row in all snapshots.
            rounds: what samples all GPUs.
            on_fresh: called in the sampling thread after each of the first rounds of cheap values.
        """
        self.index, self.uuid = index, uuid
        self._on_fresh = on_fresh
        self.listed = True
        """True if the driver listed this GPU when it was last asked."""
        self.name = _NO_NAME
        self._handle = handle
        self._rounds = rounds
        self._born = time.monotonic()
        self._fast_call, self._slow_call, self._pcie_call, self._fault_call = (
            Caller(),
            Caller(),
            Caller(),
            Caller(),
        )
        self._fast, self._slow, self._pcie = _RoundValues.empty(), _RoundValues.empty(), _RoundValues.empty()
        self._gpm_supported: bool | None = None
        self._gpms: dict[str, Gpm] = {}
        self._rounds_without_pcie = 0
        self._counted_at = 0.0
        """When a round without PCIe rates was last counted, in monotonic seconds."""
        self._events = XidEvents(self._slow_call)
        self._faults: list[str] = []
        self._fault_refusals: dict[str, int] = {}
        self._instances: tuple[Instance, ...] = ()
        self._uses: list[Values] = []
        self._loss: str | None = None
        """Why the GPU was lost."""
        self._shares_since = self._util_since = (time.time_ns() - 1_000_000_000) // 1000
        self._fast_rounds = self._slow_rounds = 0
        self._slow_rounds_done = 0
        self._first_read: dict[str, float] = {}
        """When the counters of this GPU and its instances were first read, by UUID, in monotonic seconds."""
        self._fast_member = RoundMember(rounds.fast, f"gpu{index}", self._fast_round, self._end_fast)
        self._slow_member = RoundMember(rounds.slow, f"gpu{index}-slow", self._slow_round, self._end_slow)
        self._pcie_thread = PeriodicThread(
            f"gpu{index}-pcie", self._pcie_round, slow_pace(rounds.interval), offset=separate_offset(index)
        )
        self._parts = (self._fast_member, self._slow_member, self._pcie_thread)

    # ---- for the thread that owns this GPU's place in the list ----

    def start(self) -> None:
        """Take part in the rounds; it goes on until `stop()`."""
        self._fast_member.start()
        self._slow_member.start()

    def stop(self) -> None:
        """Take part in no further round; returns at once."""
        for part in self._parts:
            part.stop()

    def join(self, deadline: float) -> bool:
        """Wait until a monotonic time for the rounds in hand to end; returns whether all did."""
        self._fast_member.join(deadline - time.monotonic())
        self.stop()  # again: the last fast round may have started the PCIe thread
        return all(part.join(deadline - time.monotonic()) for part in self._parts)

    def move(self, handle: Any, index: int) -> None:
        """The driver now knows this GPU by this handle and index."""
        self._handle, self.index, self.listed = handle, index, True

    def set_interval(self, seconds: float) -> None:
        """Change the pace of NVML's PCIe call.

        Args:
            seconds: between rounds of cheap values.
        """
        self._pcie_thread.set_seconds(slow_pace(seconds))

    # ---- for any thread ----

    @property
    def is_lost(self) -> bool:
        """Return True if the last round found the GPU gone."""
        return is_lost(self._fast.refusals)

    @property
    def is_responding(self) -> bool:
        """Return True if this GPU answers, so that no enumeration is needed."""
        return not self.is_lost and time.monotonic() - self._fast.at <= self._stale_after()

    @property
    def is_settled(self) -> bool:
        """Return True if this GPU and its instances were sampled twice, far enough apart, or have had their
        chance."""
        now = time.monotonic()
        if now - self._born > SETTLE_SECONDS:
            return True
        if not self._slow_rounds_done:  # only then are the instances known
            return False
        uuids = (self.uuid, *(one.uuid for one in self._instances))
        return all(self._fast.at - self._first_read.get(uuid, now) > APART_SECONDS + 0.05 for uuid in uuids)

    def is_hanging(self, seconds: float) -> bool:
        """Return True if a thread has been inside one driver call for longer than the limit.

        Args:
            seconds: the limit, by the monotonic clock.
        """
        waits = (call.waiting() for call in (self._fast_call, *self._slow_poll_lock()))
        return any(wait is not None and wait[1] > seconds for wait in waits)

    def functions_refused_with(self, code: int) -> set[str]:
        """Return the functions that answered `code` in the last rounds."""
        return {name for refusals in self._refusals() for name, answer in refusals.items() if answer == code}

    def functions_refused_without_reason(self) -> set[str]:
        """Return the functions that were refused for no reason given, while others answered."""
        if not self._fast.answered:
            return set()
        return {name for refusals in self._refusals() for name, code in refusals.items() if is_unspecific(code)}

    def internal_errors(self) -> list[str]:
        """Mistakes of llmtop itself in the last rounds."""
        return [part.fault for part in self._parts if part.fault is not None]

    def rows(self) -> list[Values]:
        """This GPU as known now, and its MIG instances after it: fields of `llmtop.model.snapshot.Gpu`."""
        now = time.monotonic()
        fresh = now - self._fast.at <= self._stale_after()
        values: Values = {}
        if now - self._slow.at <= self._slow_stale_after():
            values.update(self._slow.values)
        if now - self._pcie.at <= self._slow_stale_after():
            values.update(self._pcie.values)
        if fresh:
            values.update(self._fast.values)
            values["sampled_at"] = self._fast.unix
        error = self._error(now, fresh)
        rows = [{"index": self.index, "uuid": self.uuid, "name": self.name, "error": error, **values}]
        for instance in self._instances:
            own = self._fast.instances.get(instance.uuid, {}) if fresh else {}
            rows.append(
                {
                    "index": self.index,
                    **instance.identity(self.uuid),
                    "sampled_at": self._fast.unix if fresh and instance.uuid in self._fast.instances else None,
                    "error": error,
                    **own,
                }
            )
        return rows

    def uses(self) -> list[Values]:
        """Return the processes that used this GPU in the last slow round: fields of
        `collectors.base.source.GpuUse`."""
        return self._uses if time.monotonic() - self._slow.at <= self._slow_stale_after() else []

    def _slow_poll_lock(self) -> tuple[Caller, ...]:
        return self._slow_call, self._pcie_call, self._fault_call

    def _refusals(self) -> tuple[dict[str, int], ...]:
        return self._fast.refusals, self._slow.refusals, self._pcie.refusals, self._fault_refusals

    @property
    def system_memory_note(self) -> str | None:
        """Return a note on a GPU without memory of its own; None for any other."""
        if not self._fast.values.get("memory_is_system"):
            return None
        has_pcie = self._slow.values.get("pcie_gen") is not None or bool(self._pcie.values)
        pcie = "" if has_pcie else " It has no PCIe link to measure."
        return f"GPU {self.index} ({self.name}) shares the system's memory, so its memory is the system's.{pcie}"

    @property
    def implausible_values(self) -> ImplausibleValues:
        """Implausible values of the last rounds, by field."""
        return {**self._slow.implausible, **self._pcie.implausible, **self._fast.implausible}

    def _stale_after(self) -> float:
        return max(3 * self._rounds.interval, STALE_SECONDS)

    def _slow_stale_after(self) -> float:
        return 3 * slow_pace(self._rounds.interval)

    def _error(self, now: float, fresh: bool) -> str | None:
        if not self.listed:
            gone = f"the driver no longer lists this GPU (it was number {self.index})"
            return gone if self._loss is None else f"{self._loss}; {gone}"
        texts: list[str | None] = []
        wait = self._fast_call.waiting()
        if not fresh and now - self._born > self._stale_after():
            inside = f" ({wait[0]})" if wait is not None else ""
            texts.append(f"the driver has not answered for {now - max(self._born, self._fast.at):.0f} s{inside}")
        grave = (error_text(refusals, answered=self._fast.answered) for refusals in self._refusals())
        texts.append(next((text for text in grave if text), None))
        texts += [_hang(call) for call in self._slow_poll_lock()]
        texts += self._faults
        texts += self._events.texts()
        return "; ".join(text for text in texts if text) or None

    # ---- rounds of cheap values ----

    def _fast_round(self) -> None:
        self._fast_rounds += 1
        with first_calls_lock.hold() if self._fast_rounds <= FIRST_ROUNDS else nullcontext():
            self._read_fast()
        if self._fast_rounds <= FIRST_ROUNDS:
            self._on_fresh()

    def _read_fast(self) -> None:
        call = self._fast_call
        implausible: ImplausibleValues = {}
        call.begin()
        values = fast_values(call, self._handle, implausible)
        values.update(system_memory_values(call, self.name))
        instances: dict[str, Values] = {}
        if not call.is_lost:
            values.update(self._counters(implausible))
            instances = {one.uuid: self._instance_values(one) for one in self._instances}
            for uuid in self._gpms.keys() - instances.keys() - {self.uuid}:
                self._gpms.pop(uuid).free()
        self._fast = _RoundValues(values, instances, call, implausible)
        read = (self.uuid, *instances)
        self._first_read = {uuid: self._first_read.get(uuid, self._fast.at) for uuid in read}
        # Kept until the GPU answers: a restarted driver only reports that there is none.
        self._loss = error_text(call.refusals) if call.is_lost else None

    def _counters(self, implausible: ImplausibleValues) -> Values:
        """GPM's values of the whole GPU; where it has no PCIe rates, NVML's own are read instead."""
        call = self._fast_call
        values = self._read_gpm(self.uuid, lambda sample: call("nvmlGpmSampleGet", self._handle, sample))
        received = {"pcie_rx_bytes_per_s": values.get("pcie_rx_bytes_per_s")}
        if (
            plausible_values(received, implausible).get("pcie_rx_bytes_per_s") is not None
        ):  # the others are judged with the sample
            self._rounds_without_pcie = 0
            if self._pcie_thread.is_alive:
                self._pcie_thread.stop()
            return {**values, "pcie_source": "gpm"}
        now = time.monotonic()
        # GPM has nothing new before, and each new GPU begins the rounds anew.
        if now - self._counted_at >= APART_SECONDS:
            self._counted_at = now
            self._rounds_without_pcie += 1
        if self._gpm_supported is False or self._rounds_without_pcie >= GPM_PATIENCE:
            self._pcie_thread.start()
        return {name: value for name, value in values.items() if not name.startswith("pcie_")}

    def _instance_values(self, instance: Instance) -> Values:
        call, number = self._fast_call, instance.number
        values = memory_values(call, instance.handle)
        if number is not None:
            values.update(
                self._read_gpm(
                    instance.uuid, lambda sample: call("nvmlGpmMigSampleGet", self._handle, number, sample)
                )
            )
        return values

    def _read_gpm(self, uuid: str, take: Callable[[Any], Any]) -> Values:
        if self._gpm_supported is None:
            wanted = not os.environ.get(NO_GPM)
            self._gpm_supported = supported(self._fast_call, self._handle) if wanted else False
        if not self._gpm_supported:
            return {}
        if uuid not in self._gpms:
            self._gpms[uuid] = Gpm(self._fast_call, take)
        values = self._gpms[uuid].read()
        return {**values, "activity_source": "gpm"} if values else {}

    def _end_fast(self) -> None:
        for gpm in self._gpms.values():
            gpm.free()
        self._gpms = {}
        self._gpm_supported = None
        self._fast_rounds = 0  # NVML may be started anew

    # ---- rounds of slow values ----

    def _slow_round(self) -> None:
        self._slow_rounds += 1
        with (first_calls_lock if self._slow_rounds == 1 else _slow_calls_lock).hold():
            self._read_slow()

    def _end_slow(self) -> None:
        self._events.free()
        self._slow_rounds = 0

    def _read_slow(self) -> None:
        call, handle = self._slow_call, self._handle
        implausible: ImplausibleValues = {}
        call.begin()
        if self.name == _NO_NAME:
            self.name = call("nvmlDeviceGetName", handle) or _NO_NAME
        values = slow_values(call, handle)
        if call.is_lost:
            self._uses = []
        else:
            values["util_sampled_pct"], self._util_since = sampled_util(call, handle, self._util_since)
            self._instances = find_instances(call, handle)
            self._find_uses(call, handle, implausible)
            self._events.poll(handle)
            if self._slow_rounds % FAULTS_EVERY == 1:
                self._fault_call.begin()
                self._faults = memory_faults(self._fault_call, handle)
                self._fault_refusals = self._fault_call.refusals
        self._slow = _RoundValues(values, {}, call, implausible)
        self._slow_rounds_done += 1

    def _find_uses(self, call: Caller, handle: Any, implausible: ImplausibleValues) -> None:
        shares, self._shares_since = process_shares(call, handle, self._shares_since)
        places = [(one.handle, one.uuid) for one in self._instances] or [(handle, self.uuid)]
        self._uses = [
            {
                "pid": process.pid,
                "gpu_uuid": uuid,
                "mem_bytes": process.mem_bytes,
                "sm_pct": shares.get(process.pid),
                "computes": process.computes,
            }
            for place, uuid in places
            for process in running_processes(call, place, implausible) or ()
        ]

    def _pcie_round(self) -> None:
        self._pcie_call.begin()
        values = pcie_values(self._pcie_call, self._handle)
        self._pcie = _RoundValues(values, {}, self._pcie_call, {})


def _hang(call: Caller) -> str | None:
    wait = call.waiting()
    return f"{wait[0]} has not returned for {wait[1]:.0f} s" if wait and wait[1] > STALE_SECONDS else None

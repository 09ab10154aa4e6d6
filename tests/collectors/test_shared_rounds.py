"""Rounds over several devices in one thread: a device that keeps the thread delays the others once, briefly."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from collectors.base.shared_rounds import RoundMember, SharedRounds
from tests.support.processes import wait_for

SECONDS, PATIENCE = 0.05, 0.1


class Device:
    """A device whose work is counted, and may be held up."""

    def __init__(self, rounds: SharedRounds, name: str) -> None:
        self.shared = rounds
        self.rounds = self.ends = 0
        self.threads: set[int] = set()
        self.is_inside = False
        self.free = threading.Event()
        self.free.set()
        self.fails = False
        self.member = RoundMember(rounds, name, self._work, self._at_end)

    def _work(self) -> None:
        self.threads.add(threading.get_ident())
        if self.fails:
            raise ValueError("planted")
        self.is_inside = True
        self.free.wait(60.0)
        self.is_inside = False
        self.rounds += 1

    def _at_end(self) -> None:
        self.ends += 1


@pytest.fixture
def devices() -> Iterator[list[Device]]:
    rounds = SharedRounds("test-rounds", SECONDS, patience=PATIENCE)
    made = [Device(rounds, f"device {number}") for number in range(4)]
    for device in made:
        device.member.start()
    wait_for(lambda: all(device.rounds for device in made))
    yield made
    for device in made:
        device.free.set()
        device.member.stop()
        assert device.member.join(10.0)
    wait_for(lambda: own_threads() == 0)


def own_threads() -> int:
    return sum(thread.name == "llmtop-test-rounds" for thread in threading.enumerate())


def further_rounds(device: Device) -> None:
    before = device.rounds
    wait_for(lambda: device.rounds > before + 1)


def test_all_devices_are_polled_in_one_thread(devices: list[Device]) -> None:
    for device in devices:
        further_rounds(device)
    assert len(set().union(*(device.threads for device in devices))) == 1


def test_a_device_that_hangs_delays_the_others_until_the_round_is_handed_over(devices: list[Device]) -> None:
    stuck, *others = devices
    stuck.free.clear()
    wait_for(lambda: stuck.is_inside)
    before = [device.rounds for device in others]
    time.sleep(2 * PATIENCE)
    assert [device.rounds for device in others] == before, "the thread is inside the first device"
    stuck.shared.hand_over()
    for device in others:
        further_rounds(device)
    assert not stuck.member.join(0.05), "a thread is inside"
    stuck.free.set()
    further_rounds(stuck)
    wait_for(lambda: own_threads() == 1)


def open_eventfds() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += "eventfd" in os.readlink(f"/proc/self/fd/{number}")
    return found


@pytest.mark.slow("replaces a thread five times; only a leak of descriptors would be missed")
def test_a_thread_that_was_replaced_leaves_no_descriptor_behind(devices: list[Device]) -> None:
    stuck, other, *_ = devices
    before = open_eventfds()
    gc.disable()
    try:
        for _ in range(5):
            stuck.free.clear()
            wait_for(lambda: stuck.is_inside)
            time.sleep(2 * PATIENCE)
            stuck.shared.hand_over()
            further_rounds(other)
            stuck.free.set()
            wait_for(lambda: own_threads() == 1)
        wait_for(lambda: open_eventfds() <= before, 10, "the descriptors of the threads that have ended")
    finally:
        gc.enable()


def test_a_mistake_about_one_device_is_its_own_fault(devices: list[Device]) -> None:
    devices[1].fails = True
    wait_for(lambda: devices[1].member.fault is not None)
    assert devices[1].member.fault == "a fault in llmtop itself (device 1: ValueError('planted'))"
    further_rounds(devices[2])
    devices[1].fails = False
    wait_for(lambda: devices[1].member.fault is None)


def test_a_device_that_stops_ends_once_and_may_start_again(devices: list[Device]) -> None:
    device = devices[3]
    device.member.stop()
    assert device.member.join(10.0)
    rounds = device.rounds
    further_rounds(devices[0])
    assert (device.rounds, device.ends) == (rounds, 1)
    assert device.member.join(10.0)
    assert device.ends == 1
    device.member.start()
    further_rounds(device)

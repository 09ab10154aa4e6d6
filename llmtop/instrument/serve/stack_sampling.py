"""Samples the training thread's stack from the server thread: untimed work, and waits for a person.

The training thread does nothing for it. While a monitor is subscribed, its stack is sampled some six times per
second, and less often the longer ago the last step ended; each sample stands for the time since the one before.
Each time that the server thread wakes it may take Python's lock from the training, so where a message is due soon
the sample is taken then. Only samples outside of phases are described in words.

A sample for which the training thread kept Python's lock until it was requested is described by the lines since
the check before (`since_check`), or by the line that called them if they are many. One that waited for less is
counted: the thread gave the lock up by itself, most often in an operator of torch, which ran after the code that
the sample is of. That operator may be part of the next phase; `sampled_moment` shows that the sample is not. Such
a sample is described by lines seen before (`LockStretches`), else by those between the phases around it, if it is
known where the loop is in these, else by the phase before it, without a line. A phase that is too short to be met
by chance is looked for when, by the stamps of the last step, it should come next.

A collection of garbage keeps Python's lock after the request; that and the number of full collections tells it.
`gc.callbacks` would be exact, but what a signal's handler raises within a callback is lost there.

Whether it waits for its GPU is looked at in phases as well. Such a wait holds no lock of Python's; so a look that
does not get the lock at once has met a thread that ran Python. Where that thread is found once it gives the lock
up says nothing of the moment meant: it would mostly be the next wait, however short that is. Nor does a look when
an event of the training ended the sleep: that is no moment of chance.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from llmtop.instrument.serve.lock_wait import AT_ONCE_NS, LockWait
from llmtop.instrument.serve.sampled_moment import OF_NO_PLACE, outermost, sampled_moment
from llmtop.instrument.serve.stacks.stack_words import AT_A_PROMPT, StackDescriber
from llmtop.instrument.serve.step_messages import NoStepStretch
from llmtop.instrument.steps.ring import FIELDS, MASK, share_in_no_phase
from llmtop.protocol import wire
from llmtop.protocol.training_facts import CODE_AFTER, GARBAGE_COLLECTION, SampledStep

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

SAMPLE_NS: Final = 100_000_000
"""Shortest interval between two samples; while steps end, the longest is twice that."""
FEWER_BY: Final = 4
"""The interval grows to this part of the time since the last step ended."""
REST_NS: Final = 1_000_000_000
"""Longest interval between two samples, and the time without a step after which waits for a person are
searched."""
TELL_NS: Final = 1_000_000_000
MAX_CAUSES: Final = 32
EARLY_NS: Final = 25_000_000
"""A timeout for another reason serves for a sample that is due so soon: each time that this thread wakes, the
training waits for Python's lock."""
HOLD_S: Final = 0.2
"""Longest delay of a message: samples are taken with messages, since each wake of the thread costs the training
more than what is done in it."""
FEW_HOLD_S: Final = 0.5
"""The same while little of the step is in no phase or there is no phase, and no GPU is timed: nothing is decided
by samples then."""
FEW_SHARE: Final = 0.04
"""Share of the step in no phase below which it is little. The rule `outside` asks what the lines are from 7 % of
the step on."""
_SHARE_STEPS: Final = 16
"""Steps that this share is the median of."""
_FRACTIONS: Final = 1 << 20
AIMS: Final = 24
AIM_APART_NS: Final = 50_000_000
"""How often it is tried to meet the loop in a phase whose place is not known, and how long after the last try."""
COLLECTION_NS: Final = 3_000_000
"""A collection of garbage keeps Python's lock for longer after the request; code of Python gives it up sooner."""


class StackSampler:
    """Samples of the training thread since a monitor subscribed. For the server thread alone."""

    def __init__(self, recorder: State, pauses: deque[NoStepStretch]) -> None:
        """Prepare.

        Args:
            recorder: whose thread is sampled.
            pauses: receives the times in which it waits for a person.
        """
        self._recorder = recorder
        self._pauses = pauses
        self._describer = StackDescriber()
        self.lock_wait = LockWait()
        """Lock wait during the sleep before a sample; the server begins and ends it."""
        self._sampled_at = 0
        """When, as perf_counter ns; 0 for not lately."""
        self._next = 0
        self._aim = 0
        """When to look for the loop in a phase, as perf_counter ns; 0 for never."""
        self._wanted = ""
        """Name of that phase."""
        self._aims_left: dict[str, int] = {}
        self._collections = 0
        self._found: dict[str, int] = {}
        self._samples = 0
        """Number of samples in `_found`."""
        self._kept_after: dict[str, str] = {}
        """Phase before each of those for which the lock was kept until it was requested."""
        self._placed_after: dict[str, str] = {}
        """Phase before each of those whose lines are known by what had passed."""
        self._early: dict[str, int] = {}
        """Time by the phase before, in ns, of the samples without a line from before its place was known."""
        self._found_since = 0
        self._waited: dict[str, int] = {}
        self._judged = 0
        """Time since `_found_since`, in ns, for which samples showed whether it waits for the GPU."""
        self._unjudged = 0
        """Since the last sample that showed it, in ns."""
        self._outside_share = 1.0
        """Share of the recent steps that is in no phase, by their stamps."""
        self.number = 0
        """Number of the message in `outside`."""
        self.outside: wire.Outside | None = None
        self.waits_for = ""
        """Reason why the training waits for a person, in words; "" if it does not."""

    def rest_s(self) -> float:
        """Return the seconds until the next sample."""
        return max(0.0, (self._next - time.perf_counter_ns()) / 1e9)

    def aim_s(self) -> float | None:
        """Return the seconds until the loop is to be met in a phase whose place is not known; None for never."""
        return max(0.0, (self._aim - time.perf_counter_ns()) / 1e9) if self._aim else None

    def longest_hold_s(self) -> float:
        """Return how long a message may be held: a sample is taken with each one."""
        recorder = self._recorder
        has_few = self._outside_share < FEW_SHARE or not recorder.paths.has_any
        return FEW_HOLD_S if has_few and recorder.clock is None else HOLD_S

    def forget(self) -> None:
        """Drop all samples: no monitor is subscribed any more."""
        self._want_waits(False)
        self._sampled_at = self._next = self._aim = 0
        self._wanted = ""
        self._aims_left.clear()
        self._describer.forget()
        self._outside_share = 1.0
        self._forget_found()
        self._forget_waits()
        self.outside = None
        self._note_pause("", 0)

    def sample(self) -> None:
        """Sample the training thread if it is due."""
        now = time.perf_counter_ns()
        if self._aim and now >= self._aim:
            self._find_phase(now)
        elif now >= self._next - (0 if self.lock_wait.late_ns is None else EARLY_NS):
            self._take_sample(now)

    def _take_sample(self, now: int) -> None:
        self._want_waits(True)
        recorder = self._recorder
        since_step = now - recorder.ring.last_end()
        if not self._sampled_at:
            self._sampled_at = self._found_since = now
        # What passed while it stood still is nothing that it did.
        between, self._sampled_at = 0 if self.waits_for else now - self._sampled_at, now
        usual = int(SAMPLE_NS * (1 + odd_fraction(now)))
        self._next = now + min(max(usual, since_step // FEWER_BY), REST_NS)
        tracks = recorder.tracks
        thread = recorder.thread if tracks is None else tracks.thread
        if not thread or recorder.facts.kind != "step":
            return
        collections, self._collections = self._collections, gc.get_stats()[2]["collections"]
        moment = OF_NO_PLACE if tracks is not None else sampled_moment(recorder, self.lock_wait)
        in_no_phase = moment.is_outside and not recorder.evaluates
        if between and not self.waits_for and tracks is None and recorder.ring.count:
            self._sample_gpu_wait(thread, between)  # first: to read a line of source gives up the lock
        may_wait = since_step >= REST_NS
        if may_wait or (between and in_no_phase):
            wait = self.lock_wait
            held_lock = wait.held if moment.is_present else None
            is_given_up = wait.is_given_up or not moment.is_present
            seen = self._describer.describe(
                thread,
                recorder.ring.count,
                held_lock,
                wait.after_request_ns,
                is_given_up=is_given_up,
                passed=moment.passed,
                before=moment.before,
            )
            if seen is not None:
                waits_for = seen.waits_for
            else:  # without a frame is Python's own prompt; another thread than the first may have ended
                waits_for = AT_A_PROMPT if thread == threading.main_thread().ident else ""
            self._note_pause(waits_for if may_wait else "", now)
            if seen is not None and between and in_no_phase and not self.waits_for and recorder.ring.count:
                collected = wait.after_request_ns > COLLECTION_NS and 0 < collections < self._collections
                words = _collection_words(seen.words) if collected else seen.words
                self._add_sample(words, between, moment.phase_before, held_lock, is_given_up=is_given_up)
                if is_given_up and moment.passed and not words:
                    self._aim_at(moment.passed[0], now)
        else:
            if between:
                phase = outermost(recorder).name if tracks is None else ""
                self._describer.note_calls(thread, recorder.ring.count, phase)
            if self.waits_for:
                self._note_pause("", now)
        if now - self._found_since >= TELL_NS:
            self._finish_message(now)

    def _aim_at(self, phase: str, now: int) -> None:
        """Plan to look when a phase is next expected, if it is not known where the loop is then.

        Short phases are seldom met by chance, and without the place of one no line is known of the code after it.
        """
        left = self._aims_left.get(phase, AIMS)
        node, ring = self._recorder.root.children.get(phase), self._recorder.ring
        if not left or node is None or not ring.count or self._describer.knows_place(phase):
            self._wanted, self._aim = "", 0
            return
        row = ring.rows[(ring.count - 1) & MASK]
        at = FIELDS + node.slot
        period, length = max(int(row[3]), 1_000_000), int(row[at]) if at < len(row) else 0
        ahead = -(-(now + AIM_APART_NS - node.begun) // period)
        self._aims_left[phase] = left - 1
        self._wanted, self._aim = phase, node.begun + ahead * period + length // 4

    def _find_phase(self, now: int) -> None:
        """Note where the loop is, if it is in a phase, and plan the next try.

        No sample is taken: it would be of no moment of chance.
        """
        self._next = max(self._next, now + 2 * EARLY_NS)
        recorder = self._recorder
        name = outermost(recorder).name
        if name and recorder.thread and recorder.tracks is None and not self.waits_for:
            self._describer.note_calls(recorder.thread, recorder.ring.count, name)
        self._aim_at(self._wanted, now)

    def _sample_gpu_wait(self, thread: int, between: int) -> None:
        """Sample whether the training waits for its GPU; the sample stands for the time since the one before."""
        self._unjudged += between
        late = self.lock_wait.late_ns
        if late is None:
            return  # an event of the training woke this thread, and so not at random
        self._judged += self._unjudged
        between, self._unjudged = self._unjudged, 0
        if late > AT_ONCE_NS or self.lock_wait.held is not False:
            return
        words = self._describer.waits_for_gpu(thread, self._recorder.ring.count)
        if words:
            _add(self._waited, words, between)

    def _add_sample(
        self, words: str, between: int, after: str, held_lock: bool | None, *, is_given_up: bool
    ) -> None:
        """Count a sample of no phase.

        Args:
            words: which describe it; "" where no line is known.
            between: time that it stands for, in ns.
            after: name of the phase before; "" where unknown.
            held_lock: as of `StackDescriber.describe`.
            is_given_up: likewise.
        """
        if after and words and held_lock:
            self._kept_after[words] = after
        elif after and words and is_given_up:
            self._placed_after[words] = after
        elif after and not words and self.lock_wait.latest_ns is not None:
            words = f"{CODE_AFTER}{after}"
            if not self._describer.knows_place(after):
                self._early[after] = self._early.get(after, 0) + between
        self._samples += 1
        _add(self._found, words, between)

    def _forget_found(self) -> None:
        self._found, self._kept_after, self._samples = {}, {}, 0
        self._placed_after, self._early = {}, {}

    def _forget_waits(self) -> None:
        self._waited = {}
        self._judged = self._unjudged = 0

    def _note_pause(self, waits_for: str, now: int) -> None:
        if waits_for and self.waits_for:
            self._pauses[-1] = self._pauses[-1]._replace(ended=now)
        elif waits_for:
            self._pauses.append(NoStepStretch(now, now + 1))
            self._forget_found()  # it has stood still for the second that it was watched
            self._forget_waits()
        self.waits_for = waits_for

    def _want_waits(self, wanted: bool) -> None:
        if self._recorder.cpu_waits is not None:
            self._recorder.cpu_waits.is_wanted = wanted

    def _take_sampled(self) -> list[SampledStep]:
        """Take the steps whose waits for a CPU were separated since the last message."""
        waits, taken = self._recorder.cpu_waits, []
        while waits is not None and waits.sampled:
            taken.append(SampledStep(*waits.sampled.popleft()))
        return taken

    def _finish_message(self, now: int) -> None:
        ring = self._recorder.ring
        self._outside_share = share_in_no_phase(
            ring.read(ring.count - _SHARE_STEPS, _SHARE_STEPS)[1], self._recorder.root
        )
        over, self._found_since = now - self._found_since, now
        sampled = self._take_sampled()
        if self._found or self._judged or sampled:
            self.number += 1
            self.outside = wire.Outside(
                over_ns=min(over, 60 * TELL_NS),
                found=self._found,
                samples=self._samples,
                kept_after={words: phase for words, phase in self._kept_after.items() if words in self._found},
                placed_after={words: phase for words, phase in self._placed_after.items() if words in self._found},
                early=self._early,
                judged_ns=min(self._judged, 60 * TELL_NS) or None,
                waited=self._waited,
                sampled=sampled,
            )
            self._forget_found()
            self._forget_waits()


def _add(found: dict[str, int], words: str, ns: int) -> None:
    """Add a sample; the rarest entry makes room. Without words it is time of which nothing is known."""
    if words not in found and len(found) >= MAX_CAUSES - 1:
        rarest = min(found, key=lambda one: found[one])
        found[""] = found.get("", 0) + found.pop(rarest)
    found[words] = found.get(words, 0) + ns


def _collection_words(words: str) -> str:
    """Return the words for a collection of garbage and where it started: most do where most objects are made."""
    if "collect(" in words:
        return words
    return f"{GARBAGE_COLLECTION}, started in {words}" if words else GARBAGE_COLLECTION


def odd_fraction(now: int) -> float:
    """Return a pseudo-random number from 0 to 1, made from a stamp: the script's own random numbers stay as they
    are. Samples at even distances see steps of that length at one place only."""
    return ((now >> 4) * 2_654_435_761 >> 7) % _FRACTIONS / _FRACTIONS

"""One of AMD's GPUs, sampled in threads of its own, so that one that hangs delays no other."""

from __future__ import annotations

import time

from collectors.amd.calls import AmdCaller, error_text, is_unspecific
from collectors.amd.fields import Xgmi, fast_values, identity, slow_values, uses
from collectors.base.periodic_thread import PeriodicThread
from collectors.gpu.bounds import plausible_values
from collectors.gpu.poll_times import SETTLE_SECONDS, SLOW_SECONDS, STALE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from collectors.gpu.bounds import ImplausibleValues, Values


class _RoundValues:
    """Values from one round of one thread."""

    def __init__(self, values: Values, call: AmdCaller, implausible: ImplausibleValues) -> None:
        self.values, self.implausible = plausible_values(values, implausible), implausible
        self.refusals, self.answered, self.lost = call.refusals, call.answered, call.is_lost
        self.at, self.unix = time.monotonic(), time.time()


class AmdSampler:
    """Samples one GPU from `start()` to `stop()`."""

    def __init__(self, smi: Any, handle: Any, index: int, interval: float, on_fresh: Callable[[], None]) -> None:
        """Prepare to sample one GPU; no thread runs and no call is made before `start()`.

        Args:
            smi: the loaded amdsmi module.
            handle: amdsmi's processor handle of the GPU.
            index: amdsmi's number of the GPU, which snapshots show until the UUID is known.
            interval: seconds between rounds of cheap values; a slow poll follows every `SLOW_SECONDS` at most.
            on_fresh: called in the sampling thread after each round of cheap values.
        """
        self.index, self._handle, self._interval, self._on_fresh = index, handle, interval, on_fresh
        self.uuid = f"unknown-amd-{index}"
        self._name = "AMD GPU"
        self._known = False
        self._fast_call, self._slow_call = AmdCaller(smi), AmdCaller(smi)
        self._fast: _RoundValues | None = None
        self._slow: _RoundValues | None = None
        self._fast_rounds = 0
        self._xgmi = Xgmi()
        self._uses: list[Values] = []
        self._born = time.monotonic()
        self._threads = (
            PeriodicThread(f"amd{index}", self._fast_round, interval),
            PeriodicThread(f"amd{index}-slow", self._slow_round, max(SLOW_SECONDS, interval), offset=-0.05),
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask the threads to end; returns at once."""
        for thread in self._threads:
            thread.stop()

    def join(self, deadline: float) -> bool:
        """Wait until a monotonic time for the threads to end; returns whether all did."""
        ended = [thread.join(deadline - time.monotonic()) for thread in self._threads]
        return all(ended)

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval.

        Args:
            seconds: between rounds of cheap values; the slow poll stays at `SLOW_SECONDS` or longer.
        """
        self._interval = seconds
        self._threads[0].set_seconds(seconds)
        self._threads[1].set_seconds(max(SLOW_SECONDS, seconds))

    @property
    def is_lost(self) -> bool:
        """Return True if the last round found the driver gone."""
        return self._fast is not None and self._fast.lost

    @property
    def is_settled(self) -> bool:
        """Return True if it was sampled twice and its slow values are there, or it had its chance."""
        return time.monotonic() - self._born > SETTLE_SECONDS or (self._fast_rounds > 1 and self._slow is not None)

    def is_hanging(self, seconds: float) -> bool:
        """Return True if a thread has been inside one driver call for longer than the limit.

        Args:
            seconds: the limit, by the monotonic clock.
        """
        waits = (call.waiting() for call in (self._fast_call, self._slow_call))
        return any(wait is not None and wait[1] > seconds for wait in waits)

    @property
    def implausible_values(self) -> ImplausibleValues:
        """Implausible values of the last rounds, by field."""
        return {name: value for one in (self._slow, self._fast) if one for name, value in one.implausible.items()}

    def functions_refused_with(self, code: int) -> set[str]:
        """Return the functions that answered `code` in the last rounds."""
        return {name for refusals in self._refusals() for name, answer in refusals.items() if answer == code}

    def functions_refused_without_reason(self) -> set[str]:
        """Return the functions that were refused for no reason given, while others answered."""
        if self._fast is None or not self._fast.answered:
            return set()
        return {name for refusals in self._refusals() for name, code in refusals.items() if is_unspecific(code)}

    def internal_errors(self) -> list[str]:
        """Mistakes of llmtop itself in the last rounds."""
        return [thread.fault for thread in self._threads if thread.fault is not None]

    def row(self) -> Values:
        """This GPU as known now: fields of `llmtop.model.snapshot.Gpu`."""
        now, fast, slow = time.monotonic(), self._fast, self._slow
        fresh = fast is not None and now - fast.at <= self._stale_after()
        values: Values = {}
        if slow is not None and now - slow.at <= 3 * max(SLOW_SECONDS, self._interval):
            values.update(slow.values)
        if fast is not None and fresh:
            values.update(fast.values, sampled_at=fast.unix)
        error = self._error(now, fresh)
        who = {"index": self.index, "uuid": self.uuid, "name": self._name, "vendor": "AMD", "error": error}
        return {**who, **values}

    def uses(self) -> list[Values]:
        """Return the processes that used this GPU in the last slow round."""
        slow = self._slow
        fresh = slow is not None and time.monotonic() - slow.at <= 3 * max(SLOW_SECONDS, self._interval)
        return self._uses if fresh else []

    def _stale_after(self) -> float:
        return max(3 * self._interval, STALE_SECONDS)

    def _refusals(self) -> list[dict[str, int]]:
        return [one.refusals for one in (self._fast, self._slow) if one is not None]

    def _error(self, now: float, fresh: bool) -> str | None:
        texts: list[str | None] = []
        since = max(self._born, self._fast.at if self._fast else 0.0)
        if not fresh and now - self._born > self._stale_after():
            wait = self._fast_call.waiting()
            texts.append(
                f"the driver has not answered for {now - since:.0f} s" + (f" ({wait[0]})" if wait else "")
            )
        answered = self._fast is not None and self._fast.answered
        texts.append(next(filter(None, (error_text(one, answered=answered) for one in self._refusals())), None))
        slow = self._slow_call.waiting()
        if slow is not None and slow[1] > STALE_SECONDS:
            texts.append(f"{slow[0]} has not returned for {slow[1]:.0f} s")
        return "; ".join(text for text in texts if text) or None

    def _fast_round(self) -> None:
        call = self._fast_call
        call.begin()
        if not self._known:
            uuid, name = identity(call, self._handle)
            self.uuid, self._name = uuid or self.uuid, name or self._name
            self._known = uuid is not None and name is not None
        self._fast = _RoundValues(fast_values(call, self._handle), call, {})
        self._fast_rounds += 1
        self._on_fresh()

    def _slow_round(self) -> None:
        call, implausible = self._slow_call, {}  # type: AmdCaller, ImplausibleValues
        call.begin()
        values = slow_values(call, self._handle)
        if not call.is_lost:
            values.update(self._xgmi.read(call, self._handle))
            self._uses = uses(call, self._handle, self.uuid, implausible)
        self._slow = _RoundValues(values, call, implausible)

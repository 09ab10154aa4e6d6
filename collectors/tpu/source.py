"""TPUs of this machine, in the driver process; the counterpart of nvml/source.py.

libtpu reports metrics only while a program uses the TPUs; the devices and their processes are always known.
"""

from __future__ import annotations

import os
import time

from collectors.base.periodic_thread import PeriodicThread
from collectors.gpu.bounds import implausible_notes, plausible_values
from collectors.tpu.library import FigureRefused, TpuInfo, ports
from llmtop.model.signals import TPU_METRICS
from llmtop.system import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from collectors.gpu.bounds import ImplausibleValues, Values

METRICS: dict[str, str] = {signal.field: name for signal, name in TPU_METRICS}
"""Which of libtpu's figures gives which field. The duty cycle is a chip's; the others are a device's."""
DISCOVERY_SECONDS = 10.0
"""The process that has a chip open is found by going through the files of all processes."""
FIRST_DISCOVERY_SECONDS = 4.0
"""For so long a reading without TPUs means that they are still being counted: gRPC takes a while to load."""
STALE_SECONDS = 5.0
_NO_LISTENER = (
    "libtpu tells memory and duty cycle while a program has the TPUs: nothing answers at port {} "
    "(TPU_RUNTIME_METRICS_PORTS names others)"
)


class TpuSource:
    """All TPU devices of this machine, in order of their numbers."""

    def __init__(
        self,
        interval: float = 1.0,
        on_fresh: Callable[[], None] = lambda: None,
        load: Callable[[], Any] = TpuInfo,
    ) -> None:
        """Prepare to sample every `interval` seconds; touches nothing yet.

        `on_fresh` is called, from any thread, after each round; `load` gives what is asked.
        """
        self._interval, self._on_fresh, self._load = interval, on_fresh, load
        self._threads = (
            PeriodicThread("tpu", self._discover, DISCOVERY_SECONDS),
            PeriodicThread("tpu-figures", self._ask, interval),
        )
        self._library: Any = None
        self._problem: str | None = None
        self._name, self._per_chip = "TPU", 1
        self._count: int | None = None
        self._counted_at: float | None = None
        """Monotonic time at which the TPUs were first known."""
        self._owners: dict[int, int] = {}
        self._ports: list[int] = []
        self._values: dict[int, Values] = {}
        self._refusals: dict[str, str] = {}
        self._nobody = False
        self._ignored: tuple[str, ...] = ()
        self._odd: dict[int, ImplausibleValues] = {}
        self._at, self._unix = 0.0, 0.0
        self._asked_since: float | None = None
        self._started_at = time.monotonic()

    def start(self) -> None:
        """Begin; what is missing becomes a note."""
        self._started_at = time.monotonic()
        self._threads[0].start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval of the metrics; the search for TPUs keeps its own.

        Args:
            seconds: between polls of libtpu.
        """
        self._interval = seconds
        self._threads[1].set_seconds(seconds)

    def reading_values(self) -> Values:
        """Return the present values as plain data: fields of `GpuReading`, its GPUs and its uses."""
        notes = self._notes()
        if self._count is None and time.monotonic() - self._started_at < FIRST_DISCOVERY_SECONDS:
            return {"notes": notes, "settled": bool(notes)}
        rows = [self._row(number) for number in range(self._count or 0)]
        uses = [
            {"pid": pid, "gpu_uuid": rows[device]["uuid"]}
            for chip, pid in self._owners.items()
            for device in range(chip * self._per_chip, (chip + 1) * self._per_chip)
            if device < len(rows)
        ]
        return {"gpus": rows, "uses": uses, "notes": notes, "settled": self._is_settled()}

    def _is_settled(self) -> bool:
        """Return True once libtpu has answered, or has had its time for it since the TPUs are known."""
        if self._at > 0 or not self._count or self._counted_at is None:
            return True
        return time.monotonic() - self._counted_at > self._patience()

    def _row(self, number: int) -> Values:
        now, fresh = time.monotonic(), time.monotonic() - self._at <= self._patience()
        values: Values = {}
        if fresh and self._values.get(number):
            values = {**self._values[number], "sampled_at": self._unix}
        who = {
            "index": number,
            "uuid": f"TPU-{os.uname().nodename}-{number}",
            "name": self._name,
            "vendor": "Google",
            "error": self._error(now),
        }
        return {**who, **values}

    def _error(self, now: float) -> str | None:
        since = self._asked_since
        if since is not None and now - since > self._patience():
            return f"libtpu has not answered for {now - since:.0f} s"
        return "; ".join(f"{why} ({name})" for name, why in self._refusals.items()) or None

    def _patience(self) -> float:
        return max(3 * self._interval, STALE_SECONDS)

    def _notes(self) -> tuple[str, ...]:
        notes = [self._problem]
        waited = time.monotonic() - self._started_at
        if self._count is None and self._problem is None and waited > FIRST_DISCOVERY_SECONDS:
            notes.append(f"tpu-info has not answered for {waited:.0f} s")
        if self._count == 0:
            notes.append("tpu-info lists no TPU")
        if self._count and self._nobody:
            notes.append(_NO_LISTENER.format(", ".join(map(str, self._ports))))
        notes += self._ignored
        notes += implausible_notes((f"TPU {number}", odd) for number, odd in self._odd.items())
        notes += [thread.fault for thread in self._threads]
        return tuple(dict.fromkeys(note for note in notes if note))

    # ---- the thread that enumerates the chips and their processes ----

    def _discover(self) -> None:
        if self._library is None:
            try:
                self._library = self._load()
            except Exception as error:  # noqa: BLE001  whatever gRPC, protobuf and tpu-info raise together
                self._problem = f"the package tpu-info does not load ({type(error).__name__}: {str(error)[:120]})"
                self._on_fresh()
                return
        try:
            name, chips, per_chip = self._library.chips()
            owners = self._library.owners()
        except Exception as error:  # noqa: BLE001  it asserts, and reads files that may go meanwhile
            self._problem = f"tpu-info cannot tell the chips ({type(error).__name__}: {str(error)[:120]})"
            self._on_fresh()
            return
        self._problem = None
        self._name, self._per_chip, self._owners = name or "TPU", max(1, per_chip), owners
        self._ports = ports(set(owners.values()), procfs.environ)
        self._count = chips * self._per_chip
        if self._counted_at is None:
            self._counted_at = time.monotonic()
        if self._count:
            self._threads[1].start()
        self._on_fresh()

    # ---- the thread that asks libtpu ----

    def _ask(self) -> None:
        self._asked_since = time.monotonic()
        answers: dict[str, list[tuple[int, float]]] = {name: [] for name in METRICS}
        refusals: dict[str, str] = {}
        ignored: list[str] = []
        nobody = True
        for port in self._ports:
            for name, metric in METRICS.items():
                try:
                    answers[name] += sorted(self._library.figures(port, metric).items())
                    nobody = False
                except FigureRefused as refused:  # noqa: PERF203  each is asked, whatever became of the one before
                    nobody = nobody and refused.nobody
                    if refused.ignored:
                        ignored.append(str(refused))
                    elif not (refused.absent or refused.nobody):
                        refusals[metric] = str(refused)
                    if refused.nobody or refused.late or refused.ignored:
                        break
        self._store_figures(answers)
        self._refusals, self._nobody, self._ignored = refusals, nobody, tuple(ignored)
        self._at, self._unix, self._asked_since = time.monotonic(), time.time(), None
        self._on_fresh()

    def _store_figures(self, answers: dict[str, list[tuple[int, float]]]) -> None:
        count, each = self._count or 0, self._per_chip
        if each > 1 and len(answers["util_pct"]) * each == count:
            answers["util_pct"] = [
                (at * each + core, value)
                for at, (_, value) in enumerate(answers["util_pct"])
                for core in range(each)
            ]
        rows: dict[int, Values] = {}
        for name, figures in answers.items():
            for number, value in figures_by_device(figures, count).items():
                rows.setdefault(number, {})[name] = int(value) if name.endswith("_bytes") else value
        odd: dict[int, ImplausibleValues] = {number: {} for number in rows}
        self._values = {number: plausible_values(row, odd[number]) for number, row in rows.items()}
        self._odd = odd


def figures_by_device(answers: list[tuple[int, float]], count: int) -> dict[int, float]:
    """Figures by the number of the device on this machine.

    Args:
        answers: device id and value, port by port: a libtpu counts the devices of all machines, or its own.
        count: how many devices this machine has.

    Returns:
        By id where each occurs once and is one of this machine's; else by order, where there is one for each
        device; else none: the mapping is unknown.
    """
    ids = {key for key, _ in answers}
    if len(ids) == len(answers) and all(0 <= key < count for key in ids):
        return dict(answers)
    return dict(enumerate(value for _, value in answers)) if len(answers) == count else {}

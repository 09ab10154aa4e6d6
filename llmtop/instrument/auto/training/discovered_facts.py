"""Facts of a training beside its steps, without a call in its script: number of steps, logged values, model.

Three times something is done for it. `discover`, in the training thread, some times a second at the end of a step:
which library runs this, how many steps it will have, what its model is. `index`, at the end of each step that a
library counts. And `refresh`, in the server thread while a monitor is there: the numbers of the moment, of which
none is ever waited for. A number that is on a GPU is copied in `discover`, as those given to log() are.

What the script says itself is never overwritten: a name that it has given to log() is its own from then on.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.instrument.auto.model.flops_estimate import ModelFacts
from llmtop.instrument.auto.training import frameworks
from llmtop.instrument.gpu.logged_tensors import GpuMetrics
from llmtop.instrument.guest import sanitize
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.record.recorder import get

if TYPE_CHECKING:
    from llmtop.instrument.auto.training.frameworks import Framework
    from llmtop.instrument.auto.training.step_end import StepEndDetector
    from llmtop.instrument.record.recorder import Recorder

MOST_NAMES = 32
"""Metrics that are taken from a library; some log the norm of each parameter's gradient. The others are left for
what the script logs."""
REFRESH_S = 0.25
GPU_EVERY_S = 1.0
"""Copies of 16 numbers at once take some 0.4 ms of the training thread."""
WHAT_IT_KNOWS = "what the training library knows"
WHAT_IT_LOGS = "what the training library logs"
_LEARNING_RATE = re.compile(r"(^|[^a-z])(lr|learning[ _-]?rate)([^a-z]|$)", re.IGNORECASE)


class TrainingLoop(Protocol):
    """Interface of the loop that this belongs to."""

    recorder: Recorder
    step_end_detector: StepEndDetector

    @property
    def in_training_thread(self) -> bool:
        """Return True if the calling thread is the one that trains."""

    @property
    def most_passes(self) -> int:
        """How many backward passes a step has had at most."""


class Known:
    """Belongs to a loop, and ends with it in a forked child."""

    __slots__ = (
        "_accelerated",
        "_arrived",
        "_due",
        "_failed",
        "_gpu",
        "_gpu_due",
        "_hears_lightning",
        "_last",
        "_listens",
        "_loop",
        "_ours",
        "_theirs",
        "framework",
        "model",
        "numbers",
    )

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self.model = ModelFacts(loop.recorder)
        self.framework: Framework | None = None
        """Library that runs the training; None for a loop of the script's own."""
        self.numbers = False
        """True if it counts the steps, so that `index` is to be asked at the end of each."""
        self._last: int | None = None
        self._accelerated: dict[str, Any] = {}
        self._listens = self._hears_lightning = False
        self._arrived: dict[str, float] = {}
        """Numbers that were on a GPU."""
        self._gpu: GpuMetrics | None = None
        self._due = self._gpu_due = 0.0
        self._failed = False
        self._ours: dict[str, float] = {}
        self._theirs: set[str] = set()
        """Names of the script's own."""

    # --- the training thread ----------------------------------------------------------------------

    def discover(self) -> None:
        """Find out what runs the training and what it knows; called within a step or at its end."""
        try:
            recorder = self._loop.recorder
            if recorder.manual_used or recorder.off or not recorder.facts.auto:
                return
            self._find()
            self._publish_counts()
            self._fetch()
            self.model.refresh()
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            self._give_up()
            report_internal_error(WHAT_IT_KNOWS, error)

    def index(self) -> int | None:
        """Return the library's number of the step that ends now; None where it does not say.

        A library that has not counted on since the step before runs this one no more (another trainer does, or
        the script itself), or counts something else.
        """
        try:
            done = self.framework.steps_done()  # type: ignore[union-attr]  # there is one while it numbers
            if done is None or done == self._last:
                done = self._find_another()
            self._last = done
        except BaseException as error:  # noqa: BLE001 - the door
            self._give_up()
            report_internal_error(WHAT_IT_KNOWS, error)
            return None
        return done

    def _find_another(self) -> int | None:
        """Return the library that numbers the steps now; None without one."""
        before = self.framework
        self._find()
        self.numbers = self.numbers and self.framework is not before
        self._publish_counts()
        return self.framework.steps_done() if self.numbers and self.framework is not None else None

    def _give_up(self) -> None:
        self.framework, self.numbers = None, False

    def _find(self) -> None:
        """Examine the calling frames. A new library is assumed to count the steps until it shows otherwise."""
        found = frameworks.find_running(self.framework, lambda: frameworks.Accelerated(self._accelerated))
        if found is self.framework:
            return
        self.framework = found
        self._last = None
        self.numbers = found is not None and type(found.steps_done()) is int
        if not self._listens and isinstance(found, frameworks.Accelerated):
            self._listens = frameworks.listen_to_accelerate(self._passes)
        if isinstance(found, frameworks.LightningTrainer):
            self._hears_lightning = self._hears_lightning or frameworks.listen_to_lightning(self._passes_lightning)
            found.has_own_steps = self._hears_lightning

    def _publish_counts(self) -> None:
        """Publish the number of steps and the batches per step, where these are new."""
        facts, framework = self._loop.recorder.facts, self.framework
        total = framework.total_steps() if framework is not None and self.numbers else None
        batches = None if framework is None else framework.accumulation(self._loop.most_passes)
        if (total, batches) != (facts.seen_total_steps, facts.accumulation_steps):
            facts.seen_total_steps, facts.accumulation_steps = total, batches
            facts.changed()
            self._loop.recorder.wake_server()

    def _fetch(self) -> None:
        """Begin to copy what is logged and still on a GPU, and take in what has arrived."""
        recorder = self._loop.recorder
        if recorder.gpu_metrics is None or self.framework is None:
            return
        if self._gpu is None:
            self._gpu = recorder.gpu_metrics.on_same_device()
        self._gpu.collect(self._arrived, self._keep)
        now = time.monotonic()
        if now >= self._gpu_due:
            self._gpu_due = now + GPU_EVERY_S
            for name, value in self.framework.logged_metrics().items():
                if type(name) is str and sanitize.is_on_gpu(value):
                    self._gpu.take(name, value, recorder.current_index())

    def _passes(self, values: Any) -> None:
        """Something was given to `Accelerator.log`: keep the numbers, and no tensor."""
        try:
            if not isinstance(values, dict) or not self._loop.in_training_thread:
                return
            for name, value in dict.items(values):
                if type(name) is not str:
                    continue
                if sanitize.is_on_gpu(value):
                    if self._gpu is not None:
                        self._gpu.take(name, value, self._loop.recorder.current_index())
                elif name in self._accelerated or len(self._accelerated) < MOST_NAMES:
                    number = on_host(value)
                    if number is not None:
                        self._accelerated[name] = number
                        self._keep(sanitize.metric_name(name), number, self._loop.recorder.current_index())
            self._loop.recorder.wake_server()
        except BaseException as error:  # noqa: BLE001 - the door
            report_internal_error(WHAT_IT_LOGS, error)

    def _passes_lightning(self, values: dict[Any, Any]) -> None:
        """A LightningModule logs a value: keep it with its step if it shows how the training learns."""
        try:
            if not self._loop.in_training_thread:
                return
            recorder = self._loop.recorder
            for name, value in values.items():
                shown = sanitize.metric_name(name) if type(name) is str else ""
                if not shown or shown in self._theirs or not recorder.logged.watch(shown):
                    continue
                if sanitize.is_on_gpu(value):
                    if self._gpu is not None:
                        self._gpu.take(shown, value, recorder.current_index())
                elif (number := on_host(value)) is not None:
                    self._keep(shown, number, recorder.current_index())
        except BaseException as error:  # noqa: BLE001 - the door
            report_internal_error(WHAT_IT_LOGS, error)

    # --- the server thread ------------------------------------------------------------------------

    def refresh(self, at_once: bool) -> None:
        """Take in the numbers of the moment, some times a second or `at_once`."""
        now = time.monotonic()
        recorder = self._loop.recorder
        if (now < self._due and not at_once) or self._failed or recorder.manual_used or recorder.off:
            return
        self._due = now + REFRESH_S
        try:
            self._take_in()
        except Exception as error:  # noqa: BLE001 - the door of this thread, where nothing is the script's
            self._failed = True
            recorder.cannot_see(WHAT_IT_LOGS, f"{type(error).__name__}: {error}"[:200])

    def _take_in(self) -> None:
        framework = self.framework
        values = {} if framework is None else framework.logged_metrics().copy()
        values.update(self._arrived.copy())
        for name, value in values.items():
            number = on_host(value) if type(name) is str else None
            if number is not None:
                at_present = framework is not None and not framework.has_own_steps and name not in self._arrived
                self._put(sanitize.metric_name(name), number, at_present)
        for step, name, value in [] if framework is None else framework.take_points():
            number = on_host(value) if type(name) is str else None
            if number is not None and sanitize.metric_name(name) in self._ours:
                self._keep(sanitize.metric_name(name), number, step)
        lr_name = "lr" if framework is None else framework.lr_name
        logged = (self._loop.recorder.metrics.copy().keys() - self._ours.keys()) | values.keys()
        if not any(type(name) is str and _LEARNING_RATE.search(name) for name in logged):
            rate = on_host(_learning_rate(self._loop.step_end_detector.optimizer()))
            if rate is not None:
                self._put(lr_name, rate, True)

    def _keep(self, name: str, number: float, step: int) -> None:
        """Keep a value with its step if it shows how the training learns and is not logged by the script."""
        logged = self._loop.recorder.logged
        if name not in self._theirs and logged.watch(name):
            logged.add(name, number, step)

    def _put(self, name: str, number: float, at_present: bool) -> None:
        """Show a number under a name that the script does not use; `at_present`: it is of the present step."""
        metrics, ours = self._loop.recorder.metrics, self._ours
        if name in self._theirs:
            return
        if name in metrics and metrics[name] is not ours.get(name):
            ours.pop(name, None)
            self._theirs.add(name)
        elif name in ours or (len(ours) < MOST_NAMES and len(metrics) < sanitize.MAX_METRICS):
            if at_present and ours.get(name) != number:
                self._keep(name, number, self._loop.recorder.current_index())
            ours[name] = metrics[name] = number


def on_host(value: Any) -> float | None:
    """Return a number that is here already; None for a tensor on whatever device, which one might have to wait
    for."""
    kind = type(value)
    if kind is float:
        return float(value)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and issubclass(kind, tensor):
        if value.device.type != "cpu" or value.numel() != 1:
            return None
    elif kind is bool or not hasattr(kind, "__float__"):
        return None
    return sanitize.number(value)


def _learning_rate(optimizer: Any) -> Any:
    """Return the learning rate of the first group of parameters, without asking a class of the script's."""
    groups = None if optimizer is None else object.__getattribute__(optimizer, "__dict__").get("param_groups")
    first = groups[0] if type(groups) is list and groups else None
    return first.get("lr") if type(first) is dict else None


def make(loop: TrainingLoop) -> Known:
    """Return the facts of that loop's training, which the recorder reads from now on."""
    known = Known(loop)
    recorder = get()
    recorder.hooks.periodic.append(known.discover)
    recorder.hooks.refresh = known.refresh
    return known

"""State of a `Loop`: its thread, its memory, and its reset."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmtop.instrument.auto.training import discovered_facts
from llmtop.instrument.auto.training.evaluation import Evaluation
from llmtop.instrument.auto.training.step_end import StepEndDetector
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.record import recorder
from llmtop.instrument.record.recorder import Step, phase_of
from llmtop.naming.own_phases import DATALOAD

if TYPE_CHECKING:
    from llmtop.instrument.auto.training.loader_batches import LoaderBatches
    from llmtop.instrument.record.recorder_parts import OpenStep

MAX_TRAINED = 1024
"""Modules that are remembered as trained: a model for each fold of the data must not fill the memory."""
FOREIGN_PASSES = 16
"""Backward passes of another thread, while the one whose steps are recorded ends none, until it takes over."""


def no_parameter() -> None:
    """Stands for what gives a parameter while none is known."""


class LoopState:
    """The state of this process's training loop. Every method is cheap, and none raises."""

    __slots__ = (
        "_again",
        "_backward",
        "_begun_here",
        "_checkpoint",
        "_closure",
        "_communication",
        "_depth",
        "_foreign",
        "_foreign_since",
        "_forward",
        "_generate",
        "_h2d",
        "_in_training_step",
        "_most_passes",
        "_optimizer",
        "_own_step",
        "_passes",
        "_started",
        "_step",
        "_stepped_in_backward",
        "_stepping",
        "_tentative",
        "_tentative_begun",
        "_tentative_ns",
        "_torch_steps",
        "_untouched",
        "_version",
        "_waiting",
        "batch_of",
        "batches",
        "boundary_from_outside",
        "busy",
        "counted",
        DATALOAD,
        "evaluated",
        "evaluation",
        "feed",
        "forget_too",
        "in_backward",
        "known",
        "optimizing",
        "publish_trained",
        "recorder",
        "step_end_detector",
        "steps_without_forward",
        "thread",
        "trained",
        "trains",
        "unstepped",
        "watched",
    )

    def __init__(self, again: Callable[[], Any]) -> None:
        self._again = again
        self.recorder = recorder.get()
        self._checkpoint = phase_of("checkpoint")
        self._generate = phase_of("generate")
        self.dataload, self._h2d, self._forward, self._backward, self._communication, self._optimizer = map(
            phase_of, (DATALOAD, "h2d", "forward", "backward", "communication", "optimizer")
        )
        self.publish_trained: Callable[[], None] = no_parameter
        """Set by `hooks`: called at the first backward pass, or optimizer's step, searches for the trained modules
        and publishes them."""
        self.boundary_from_outside: Callable[[], bool] | None = None
        """Set by an integration that ends the steps itself; returns True while it still does, and was not left by
        an exception."""
        self.forget_too: Callable[[], None] | None = None
        """Called when a forked child begins anew: what else remembers what its parent did."""
        self.reset()

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Pickling or copying an object that refers to the loop gives the loop of the process that unpickles."""
        return self._again, ()

    def reset(self) -> None:
        """Begin anew: in a forked child, which has not trained yet."""
        self.thread = get_ident()
        """The thread that trains."""
        self.evaluated = False
        """Something happened that may be an evaluation's: a forward without a backward pass, a batch of another
        iterator than the training's."""
        self.feed: Callable[[], object] = no_parameter
        """Returns the iterator that the batches of the training come from: a weak reference."""
        self.batches: LoaderBatches | None = None
        """Batches of the iterator that gave the last batch."""
        self.counted: list[LoaderBatches] = []
        """Batches of the last few iterators."""
        self.evaluation = Evaluation(self.recorder)
        self.trains: set[int] = set()
        """id() of modules that were called with gradients, as a training does."""
        self.trained = False
        """True if an outermost module was ever called in training mode with gradients."""
        self._started = False
        """A first step has ended. It is not recorded: its forward, before the first backward, was not seen."""
        self._step: OpenStep | None = None
        self._own_step = Step()
        """Step object that is reused for each step begun here."""
        self._begun_here = False
        self.watched: Callable[[], Any] = no_parameter
        """Returns a parameter that is trained, or None; keeps no reference to it (see `search.HeldParameter`)."""
        self._version: tuple[int, int] | None = None
        self.steps_without_forward = 0
        self.step_end_detector = StepEndDetector()
        self._torch_steps = False
        """True if an optimizer of torch's has stepped, as hooks see it: then nothing else ends a step."""
        self._passes = self._most_passes = self._foreign = self._foreign_since = 0
        self.known = discovered_facts.make(self)
        self._be_idle()
        if self.forget_too is not None:
            self.forget_too()

    def _be_idle(self) -> None:
        """Set what is noted of forward, backward and optimizer to: nothing is under way."""
        self.busy = False
        """Within a forward, a backward or an optimizer step: what modules and tensors do there is part of it."""
        self.in_backward = False
        self.optimizing = False
        """Within the optimizer's own work."""
        self.unstepped = False
        """A backward pass has ended, and no optimizer's step since."""
        self._in_training_step = False
        self.batch_of = 0
        """id() of the module that was called first since the last backward pass: with what, is the batch."""
        self._waiting = False
        self._stepping: int | None = None
        self._depth = 0
        self._untouched = False
        self._closure = False
        self._stepped_in_backward = False
        self._tentative_begun = self._tentative_ns = 0
        self._tentative: OpenStep | None = None

    def lost(self, what: str, error: BaseException) -> None:
        """Called within `except`: a hook of ours failed, or was interrupted. The next step begins anew.

        Raises:
            BaseException: `error`, where it is the script's.
        """
        step, self._step = self._step, None
        self._be_idle()
        if step is not None and self.recorder.open_step is step and self._begun_here:
            self.recorder.step_failed(step)
        report_internal_error(what, error)

    def stands_down(self) -> bool:
        """Return True to record nothing, because the script does it itself. A step that was begun is then
        dropped."""
        r = self.recorder
        r.saw_work()
        if r.manual_used and self._step is not None:
            self._give_up_step()
        return r.manual_used or r.off

    @property
    def attached(self) -> bool:
        """Return True if this process has trained (and not only loaded data, or a model)."""
        return self.recorder.attached

    @property
    def infers(self) -> bool:
        """Return True if what it publishes are requests or forwards, since it has not trained."""
        return self.recorder.facts.inference

    @property
    def most_passes(self) -> int:
        """How many backward passes a step has had at most."""
        return self._most_passes

    @property
    def in_training_thread(self) -> bool:
        """Return True if the calling thread is the one that trains."""
        return get_ident() == self.thread

    def is_foreign(self) -> bool:
        """Return True if the calling thread, another than `thread`, is to be left alone with its training.

        One process shows the steps of one thread. Another takes over when that one has ended, or steps no more.
        """
        r = self.recorder
        if self.attached and (self._started or self._passes) and self.thread in sys._current_frames():
            if self._foreign_since != r.ring.count:
                self._foreign_since, self._foreign = r.ring.count, 0
            self._foreign += 1
            if self._foreign <= FOREIGN_PASSES:
                r.count_left_out("backward passes of a second thread that trains")
                return True
        self._step = None
        self._foreign = 0
        self._be_idle()
        self._take_thread()
        return False

    def trains_module(self, number: int) -> None:
        """Store the id() of a module that is called as a training does."""
        if len(self.trains) >= MAX_TRAINED:
            self.trains.clear()
        self.trains.add(number)

    def _take_thread(self) -> None:
        self.thread = get_ident()
        if self.recorder.tracks is None and not self.recorder.off:
            if self.attached:
                self.recorder.forget_unfinished()
            self.recorder.thread = self.thread

    def _give_up_step(self) -> None:
        """The script records its steps itself after all: the one that was begun here must not swallow them."""
        begun, self._step = self._step, None
        if self._begun_here and begun is not None and self.recorder.open_step is begun:
            self.recorder.forget_step()

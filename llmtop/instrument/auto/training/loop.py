"""State of a training loop, from the hooks; it reports steps and phases to the recorder.

One loop a process, driven by the thread that trains. The order of events is all it knows: it keeps no tensor, no
module and no optimizer alive.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

from llmtop.instrument.auto.training.evaluation import has_environments
from llmtop.instrument.auto.training.loop_state import LoopState, no_parameter
from llmtop.instrument.record.recorder import Phase, Step
from llmtop.naming.own_phases import DATALOAD

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import OpenStep

PASSES_WITHOUT_STEP = 100
"""Backward passes, and four times as many as any step has had, after which steps cannot be detected."""
STEPS = "the steps of this script"


_torch: Any = sys.modules["torch"]  # it was there before these hooks
_unwatched = _torch._C.DisableTorchFunction
is_compiling: Callable[[], bool] = _torch.compiler.is_dynamo_compiling
"""Half of what torch's own is_compiling() costs; torch.compile takes it for a constant by whatever name."""


class Loop(LoopState):
    """The state of this process's training loop. Every method is cheap, and none raises of its own accord."""

    __slots__ = ()

    # --- loading ----------------------------------------------------------------------------------

    def dataload_begins(self) -> Phase:
        """A batch of the training's is asked for, for sure.

        Returns:
            The phase that has begun, to be left when the batch is there.
        """
        phase = self.dataload
        if self.unstepped or self.evaluated:
            phase = self.batch_is_asked_for(None) or phase
        phase.__enter__()
        return phase

    def batch_is_asked_for(self, waits: object) -> Phase | None:
        """A batch is asked for, of whatever loader; called before the wait for it begins.

        Returns:
            The phase that the wait is part of; None for a phase of its own.
        """
        if not self.in_training_thread or self.stands_down():
            return None
        if self.unstepped:
            self._detect_unseen_step()
        self.evaluated = False
        tentative_ns, self._tentative_ns = self._tentative_ns, 0
        self._tentative = None
        if waits is None or self.feed() is waits:
            self.evaluation.end()
            if tentative_ns and self.stands_between_steps():
                self.recorder.add_phase("evaluation", self._tentative_begun, tentative_ns)
            return None
        self.evaluated = True
        if not self.stands_between_steps():
            self.evaluation.begins_with(waits)
            return None
        return self.evaluation.batch_is_asked_for(waits)

    def stands_between_steps(self) -> bool:
        """Return True if no step and no phase is open, so that what comes need not be the training's."""
        r = self.recorder
        return self._step is None and r.open_step is None and r.node is r.root and r.tracks is None

    def dataload_ends(self, phase: Phase | None = None, *, exhausted: bool) -> None:
        """The batch is there, or there are no more: what comes after an epoch belongs to no step."""
        if exhausted and phase in (None, self.dataload):
            self.recorder.cancel_phase(DATALOAD)
            self.feed = no_parameter
        else:
            (phase or self.dataload).__exit__(None, None, None)

    def side_phase(self, name: str) -> Phase | None:
        """Return the phase for something that is no part of a step's work, such as a checkpoint; None where it is
        part of something else.

        Args:
            name: "checkpoint" or "evaluation".
        """
        r = self.recorder
        if (
            not self.attached
            or not self.in_training_thread
            or (self.busy and not (self.optimizing and self.recovers()))
        ):
            return None
        if self.stands_down() or r.node is not r.root or r.tracks is not None or self.infers:
            return None
        if name == "checkpoint":
            return self._checkpoint
        self.evaluation.end()
        return self.evaluation.phase

    def forget_pending(self) -> None:
        """Drop the phases that were recorded since the last step."""
        self.recorder.forget_pending()

    def h2d(self) -> Phase | None:
        """Return the phase for a copy to the device that begins now; None within another phase."""
        if self.recorder.evaluates and self._step is None:
            return None
        if (
            not self.attached
            or not self.in_training_thread
            or (self.busy and not (self.optimizing and self.recovers()))
        ):
            return None
        return None if self.stands_down() else self._h2d

    def generation_begins(self) -> bool:
        """Begin the phase of a model that generates; return False where that is part of something else.

        Within the function of a framework that computes a loss it is not part of `forward`, which pauses.
        """
        if not self.attached or self.busy or not self.in_training_thread:
            return False
        if self.stands_down() or self.recorder.tracks is not None or self.infers:
            return False
        if self.recorder.evaluates and self._step is None:
            return False  # an evaluation's
        if self.recorder.node is not self.recorder.root and not self._in_training_step:
            return False  # of a phase of the script, or of a framework's evaluation
        if self._stepping is not None or self.unstepped:
            self._settle()
        if self._in_training_step:
            self._forward.__exit__(None, None, None)
        self.busy = True
        self._generate.__enter__()
        return True

    def generation_ends(self) -> None:
        """The model has generated, or raised."""
        self._generate.__exit__(None, None, None)
        self.busy = False
        if self._in_training_step:
            self._forward.__enter__()

    # --- forward and backward ---------------------------------------------------------------------

    def forward_without(self, module: Any) -> Callable[[], None] | None:
        """The outermost module is called without gradients, between steps or within one.

        Returns:
            What is to be called at the end; None if this is no evaluation, as far as known.
        """
        self.recorder.saw_work()
        if not self.attached or self.stands_down() or not self.stands_between_steps():
            return None
        self.evaluated = True
        judged = id(module) in self.trains and (not module.training or has_environments())
        if not self.evaluation.goes_on(as_judged=judged and not self.evaluation.may_be_training(self.feed())):
            return None
        self.busy = True
        self.evaluation.phase.__enter__()
        return self._forward_without_ends

    def _forward_without_ends(self) -> None:
        self.evaluation.phase.__exit__(None, None, None)
        self.busy = False

    def forward_begins(self) -> OpenStep | None:
        """The outermost module is called with gradients enabled. Returns the step; None before the first."""
        if self._stepping is not None or self.unstepped:
            self._settle()
        self.busy = True
        step = self._step or self._open_step()
        self._forward.__enter__()
        self.steps_without_forward = 0
        return step

    def forward_ends(self) -> None:
        """The outermost forward has returned or raised."""
        self._forward.__exit__(None, None, None)
        self.busy = False

    def tentative_begins(self) -> OpenStep:
        """The outermost module is called with gradients, but not as in training: an evaluation that forgot to turn
        them off, or a training that forgot to turn its mode on. If a backward pass follows it is the latter.

        Returns:
            What keeps the batch.
        """
        self.evaluated = self.busy = True
        now = perf_counter_ns()
        if not self._tentative_ns:
            self._tentative_begun = now
        self._tentative_ns -= now
        if self._tentative is None:
            self._tentative = Step()
        return self._tentative

    def tentative_ends(self) -> None:
        """A possible forward has returned or raised."""
        self._tentative_ns += perf_counter_ns()
        self.busy = False
        self.evaluation.computes()

    def _was_training(self) -> None:
        """A backward pass follows what was taken for an evaluation."""
        self.trained = False
        self._trains_again()
        ns, self._tentative_ns = self._tentative_ns, 0
        batch, self._tentative = self._tentative, None
        self.steps_without_forward = 0
        self.recorder.add_phase("forward", self._tentative_begun, ns)
        step = self._step or self._open_step()
        if batch is not None and step is not None:
            for name in ("tokens", "samples"):
                counted = getattr(batch, name)
                if counted is not None:
                    setattr(step, name, (getattr(step, name) or 0) + counted)

    def training_step_begins(self) -> None:
        """A function that computes a loss is called: it counts as forward, up to a backward pass within it."""
        if self._stepping is not None or self.unstepped:
            self._settle()
        self._open_step()
        self._in_training_step = True
        self._forward.__enter__()

    def training_step_ends(self) -> None:
        """The framework's training step has returned or raised."""
        if self._in_training_step:
            self._in_training_step = False
            self._forward.__exit__(None, None, None)

    def attach(self, *, anew: bool = False) -> None:
        """Publish this process from now on: it trains.

        Args:
            anew: whether it was published so far as one that does not.
        """
        if anew or not self.attached:
            self.recorder.facts.auto = True
            self._take_thread()
            if self.batches is not None:
                self.batches.take(Step(), first=True)  # of the forward pass before this first backward pass
            self.recorder.attach()

    def backward_begins(self) -> None:
        """A backward pass begins, and none is running."""
        if self._stepping is not None or self.unstepped:
            self._settle()
        if self._in_training_step:
            self.training_step_ends()
        if self._tentative_ns:
            self._was_training()
        if self._step is None:
            self._open_step()
        self.busy = self.in_backward = True
        self._backward.__enter__()

    def gradients_are_computed(self) -> None:
        """Called within backward: what follows waits for other ranks, if this is the thread that will wait."""
        if self.in_backward and not self._waiting and self.in_training_thread:
            self._backward.__exit__(None, None, None)
            self._waiting = True
            self._communication.__enter__()

    def backward_ends(self) -> None:
        """The backward pass has returned or raised."""
        (self._communication if self._waiting else self._backward).__exit__(None, None, None)
        self._waiting = False
        self.busy = self.in_backward = False
        self.unstepped = True
        self.batch_of = 0
        self._passes = passes = self._passes + 1
        if passes > self._most_passes:
            self._torch_steps = False  # its optimizer may step in compiled code by now, which runs no hooks
            if passes == PASSES_WITHOUT_STEP + 4 * self._most_passes and not self.boundary_from_outside:
                why = "but no step of an optimizer of torch's and no changed parameter since the last"
                self.recorder.cannot_see(STEPS, f"{passes} backward passes, {why}; llmtop.step() would tell them")
        if not self._torch_steps:
            self._version = _version_of(self.watched())
        if self._closure:
            self.optimizing = True
            self._optimizer.__enter__()
        elif self._stepped_in_backward:
            self._stepped_in_backward = False
            self._end_step()

    def waits(self) -> Phase | None:
        """Return the phase for a collective that blocks Python; None when it is not to be counted."""
        if self._waiting or (self.recorder.evaluates and self._step is None):
            return None
        return self._communication if self.attached and self.in_training_thread else None

    # --- optimizers -------------------------------------------------------------------------------

    def optimizer_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer's step begins: torch calls this itself, as the hook that it is."""
        if is_compiling():
            return
        r = self.recorder
        if get_ident() != self.thread and r.attached:
            return
        try:
            if (r.manual_used or r.off) and self.stands_down():
                return
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            # After a backward pass, which has met it already, there is nothing to ask for.
            if not self.unstepped and closure is None and (not r.attached or r.facts.inference):
                if is_data_worker() or not _has_gradients(optimizer):
                    return
                self.publish_trained()  # its gradients are from torch.autograd.grad
            if self._step is None:
                self._open_step()
            if self.in_backward:
                self._stepped_in_backward = True  # as memory-saving recipes do, one optimizer a parameter
                return
            if self._stepping is not None:
                if _within_another_step():
                    self._depth += 1
                    return
                self._leave_failed_step()
            self._stepping = id(optimizer)
            self._untouched = True
            self._depth = 0
            self._closure = closure is not None  # which runs inside it
            self.optimizing = True
            self.busy = not self._closure
            self._optimizer.__enter__()
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            self.lost("the optimizer's steps", error)

    def optimizer_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer's step has returned: torch calls this itself, as the hook that it is."""
        if is_compiling() or get_ident() != self.thread:
            return
        try:
            if self._stepping is None or self.in_backward:
                return
            if self._depth:
                self._depth -= 1
                if _within_another_step():
                    return
            if self.optimizing:
                self._optimizer.__exit__(None, None, None)
                self.busy = self.optimizing = False
            self._closure = self.unstepped = False
            self._torch_steps = True
            self._stepping = None
            step_end_detector = self.step_end_detector
            if id(optimizer) == step_end_detector.number and not step_end_detector.others:
                step_end_detector.run += 1
            elif not step_end_detector.ends_step(optimizer):
                return
            if self.boundary_from_outside is None:
                self.end_step()
            else:
                self._end_step()
        except BaseException as error:  # noqa: BLE001 - the door: see guard
            self.lost("the optimizer's steps", error)

    def recovers(self) -> bool:
        """Return True if an optimizer's step raised and so had no end, which left the loop busy."""
        if self._closure or runs_below(sys.modules["torch.optim.optimizer"].__file__):
            return False
        self._recover()
        return True

    def _leave_optimizer(self, calls_closure: bool = False) -> None:
        """The optimizer's own work ends, or stops because its closure is called again."""
        if self.optimizing:
            if calls_closure and self._untouched:
                self.recorder.cancel_phase("optimizer")  # it has done nothing yet
            else:
                self._optimizer.__exit__(None, None, None)
            self.busy = self.optimizing = False

    # --- steps ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Something is computed while an optimizer steps, or before one has: that may end what was before."""
        self._recover()
        self._leave_optimizer(calls_closure=True)
        self._detect_unseen_step()
        self._untouched = False

    def _open_step(self) -> OpenStep | None:
        r = self.recorder
        if self.evaluated:
            self._trains_again()
        if self._step is not None:
            return self._step
        if r.open_step is not None:
            self._step, self._begun_here = r.open_step, False  # an integration's
        elif self._started:
            step = self._own_step
            if r.tracks is None:  # the one before has ended: to make another costs more than to clear it
                step.tokens = step.samples = step.index = None
            else:
                step = Step()
            self._step, self._begun_here = step, True
            if r.node is r.root and not r.cut:
                step.__enter__()
            else:
                r.begin_around(step)
        return self._step

    def _trains_again(self) -> None:
        """A forward or backward pass of the training begins after what may have been an evaluation."""
        self.evaluated = False
        feed = self.evaluation.end()
        if feed is not None:
            self.feed = feed

    def _detect_unseen_step(self) -> None:
        """End the step if a parameter or its gradient changed since the backward pass without an optimizer's step.

        It may have stepped within compiled code, or be none of torch's. One that writes to `p.data` changes
        nothing that torch counts, but the gradients are cleared before the next pass, or clipped. Where one of
        torch's optimizers has stepped before, a change is something else: weights that are clamped, or moved for a
        second backward pass.
        """
        if self.unstepped and not self._torch_steps and not self.in_backward and self._stepping is None:
            version = _version_of(self.watched())
            if None not in (version, self._version) and version != self._version:
                self._end_step()

    def _end_step(self) -> None:
        still = self.boundary_from_outside
        if still is None:
            self.end_step()
        elif not still():
            self.boundary_from_outside = None
            self._step = None
            if self.recorder.open_step is not None:
                self.recorder.forget_step()

    def end_step(self) -> None:
        """End the step, and set back all that is counted within one."""
        self._step = self._tentative = None
        self.evaluated = self.unstepped = False
        self._tentative_ns = 0
        self.steps_without_forward += 1
        r = self.recorder
        if self._passes > self._most_passes:
            self._most_passes = self._passes
            if self._passes > PASSES_WITHOUT_STEP:
                r.can_see(STEPS)
        self._passes = 0
        step = r.open_step
        if not self._started:
            if step is None:
                self.forget_pending()
                r.next_index = max(r.next_index, 1)
            self._started = True
        if step is not None and r.tracks is None:
            if r.node is not r.root:
                r.cut_open()
            if self.known.numbers and step.index is None:
                step.index = self.known.index()
            step.__exit__(None, None, None)
        else:
            r.end_step()

    def _recover(self) -> None:
        """End an optimizer's step that raised and so had no end."""
        if self._stepping is not None and not self._closure:
            self._leave_failed_step()

    def _leave_failed_step(self) -> None:
        """An optimizer's step was left by an exception: its time is not counted."""
        self._untouched = True
        self._leave_optimizer(calls_closure=True)
        self._stepping = None


def is_data_worker() -> bool:
    """Return True if this process is a worker of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _has_gradients(optimizer: Any) -> bool:
    """Return True if it has something to step with: a first call without gradients only prepares the optimizer."""
    with _unwatched():
        return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _version_of(parameter: Any) -> tuple[int, int] | None:
    """Return how often it and its gradient were changed in place (-1 without one); asked past whatever of the
    script's watches calls of torch."""
    if parameter is None:
        return None
    with _unwatched():
        gradient = parameter.grad
        return int(parameter._version), -1 if gradient is None else int(gradient._version)


def runs_below(file: str | None, times: int = 1) -> bool:
    """Return True if so many functions of that file have called what runs now; for what is rare."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            times -= 1
            if not times:
                return True
        frame = frame.f_back
    return False


def _within_another_step() -> bool:
    """Return True if the optimizer's step of a hook was called by one: that of its parent class by its own, or
    that of an optimizer by one that holds it. Otherwise an earlier one has raised, which no hook reports."""
    return runs_below(sys.modules["torch.optim.optimizer"].__file__, times=2)


def make(again: Callable[[], Loop]) -> Loop:
    """Return the loop of this process, and of every child that it forks; `again` finds that of any other."""
    loop = Loop(again)
    loop.recorder.hooks.before_batch = loop.batch_is_asked_for
    os.register_at_fork(after_in_child=loop.reset)
    return loop

"""What a training loop is doing, told by hooks; it tells the recorder in the recorder's terms.

One loop a process, driven by the thread that trains. The order of events is all it knows: it keeps no tensor, no
module and no optimizer alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from llmtop.publish import recorder
from llmtop.publish.recorder import Phase, Step, phase_of

LOST_CLOSER = 64
"""Optimizer steps without one of the optimizer that used to close a step, until another one does. More than a
GAN's discriminator takes for one of the generator."""


def _nothing() -> None:
    """No parameter is known."""


class Loop:
    """The state of this process's training loop. Every method is cheap, and none raises."""

    __slots__ = (
        "_backward",
        "_begun_here",
        "_closer",
        "_closure",
        "_communication",
        "_dataload",
        "_depth",
        "_forward",
        "_h2d",
        "_in_training_step",
        "_new_batch",
        "_optimizer",
        "_optimizing",
        "_others",
        "_seen",
        "_started",
        "_step",
        "_stepped_in_backward",
        "_stepping",
        "_unstepped",
        "_untouched",
        "_version",
        "_waiting",
        "boundary_from_outside",
        "busy",
        "evaluated",
        "in_backward",
        "recorder",
        "steps_without_forward",
        "watched",
    )

    def __init__(self) -> None:
        self.recorder = recorder.get()
        self._dataload, self._h2d, self._forward, self._backward, self._communication, self._optimizer = map(
            phase_of, ("dataload", "h2d", "forward", "backward", "communication", "optimizer")
        )
        self.boundary_from_outside = False
        """Set by an integration that ends the steps itself."""
        self.reset()

    def reset(self) -> None:
        """Begin anew: in a forked child, which has not trained yet."""
        self.busy = False
        """Within a forward, a backward or an optimizer step: what modules and tensors do there is part of it."""
        self.in_backward = False
        self.evaluated = False
        """A module was called without gradients since the last batch was asked for."""
        self._started = False
        """A first step has ended. It is not recorded: its forward, before the first backward, was not seen."""
        self._step: Step | None = None
        self._begun_here = False
        self.watched: Callable[[], Any] = _nothing
        """Returns a parameter that is trained, or None: a weak reference."""
        self._version = -1
        self.steps_without_forward = 0
        self._unstepped = False
        """A backward pass has ended, and no optimizer's step since."""
        self._in_training_step = False
        self._new_batch = True
        self._waiting = False
        self._stepping: int | None = None
        self._depth = 0
        self._untouched = False
        self._closure = False
        self._optimizing = False
        self._stepped_in_backward = False
        self._closer: int | None = None
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._others = 0

    def stands_down(self) -> bool:
        """Whether to record nothing, because the script does it itself. What was begun is then given up."""
        r = self.recorder
        r.saw_work()
        if r.manual_used and self._step is not None:
            self._give_up_step()
        return r.manual_used or r.off

    @property
    def attached(self) -> bool:
        """Whether this process has trained (and not only loaded data, or a model)."""
        return self.recorder.attached

    @property
    def here(self) -> bool:
        """Whether the calling thread is the one that trains."""
        return get_ident() == self.recorder.thread

    # --- loading ----------------------------------------------------------------------------------

    def dataload_begins(self) -> Phase:
        """A batch is asked for. The phase returned is to be left when it is there."""
        if self._unstepped:
            self._look_for_unseen_step()
        if self.evaluated and self._step is None:
            # Asked for again after a forward without gradients and none with: the batches were an evaluation's.
            self.forget_pending()
        self.evaluated = False
        self._dataload.__enter__()
        return self._dataload

    def dataload_ends(self, *, exhausted: bool) -> None:
        """The batch is there, or there are no more: what comes after an epoch belongs to no step."""
        if exhausted:
            self.recorder.cancel_phase("dataload")
        else:
            self._dataload.__exit__(None, None, None)

    def forget_pending(self) -> None:
        """Drop the phases since the last step."""
        self.recorder.forget_pending()

    def h2d(self) -> Phase | None:
        """The phase for a copy to the device that begins now; None when it is part of something else."""
        return self._h2d if self.attached and not self.busy and self.here and not self.stands_down() else None

    # --- forward and backward ---------------------------------------------------------------------

    def forward_begins(self) -> Step | None:
        """The outermost module is called with gradients enabled.

        Returns:
            The step when this is the first call since the last backward pass: what it is called with is the batch.
        """
        if self._stepping is not None or self._unstepped:
            self._settle()
        self.busy = True
        step = self._step or self._open_step()
        self._forward.__enter__()
        self.steps_without_forward = 0
        if self._new_batch:
            self._new_batch = False
            return step
        return None

    def forward_ends(self) -> None:
        """It has returned, or raised."""
        self._forward.__exit__(None, None, None)
        self.busy = False

    def training_step_begins(self) -> None:
        """A function that computes a loss is called: it counts as forward, up to a backward pass within it."""
        if self._stepping is not None or self._unstepped:
            self._settle()
        self._open_step()
        self._in_training_step = True
        self._forward.__enter__()

    def training_step_ends(self) -> None:
        """It has returned, or raised."""
        if self._in_training_step:
            self._in_training_step = False
            self._forward.__exit__(None, None, None)

    def attach(self) -> None:
        """This process trains: publish it from now on."""
        if not self.attached:
            self.recorder.facts.auto = True
            self.recorder.thread = get_ident()
            self.recorder.attach()

    def backward_begins(self) -> None:
        """A backward pass begins, and none is running."""
        if self._stepping is not None or self._unstepped:
            self._settle()
        if self._in_training_step:
            self.training_step_ends()
        if self._step is None:
            self._open_step()
        self.busy = self.in_backward = True
        self._backward.__enter__()

    def gradients_are_computed(self) -> None:
        """Within backward: what follows is waiting for other ranks, if this is the thread that will wait."""
        if self.in_backward and not self._waiting and self.here:
            self._backward.__exit__(None, None, None)
            self._waiting = True
            self._communication.__enter__()

    def backward_ends(self) -> None:
        """It has returned, or raised."""
        (self._communication if self._waiting else self._backward).__exit__(None, None, None)
        self._waiting = False
        self.busy = self.in_backward = False
        self._new_batch = self._unstepped = True
        parameter = self.watched()
        self._version = -1 if parameter is None else parameter._version
        if self._closure:
            self._optimizing = True
            self._optimizer.__enter__()
        elif self._stepped_in_backward:
            self._stepped_in_backward = False
            self._end_step()

    def waits(self) -> Phase | None:
        """The phase for a collective that blocks Python; None when it is not to be counted."""
        return self._communication if self.attached and self.here and not self._waiting else None

    # --- optimizers -------------------------------------------------------------------------------

    def optimizer_begins(self, optimizer: Any, closure: bool) -> None:
        """An optimizer's step begins."""
        if self.in_backward:
            self._stepped_in_backward = True  # as memory-saving recipes do, one optimizer a parameter
            return
        if self._stepping is not None and (self._untouched or self._stepping != id(optimizer)):
            # An optimizer within an optimizer, or its own step calls that of its parent class. Another step of the
            # same one after forwards and backwards is a new one: the last was left by an exception.
            self._depth += 1
            return
        if self._stepping is not None:
            self._recover()
        self._stepping = id(optimizer)
        self._untouched = True
        self._depth = 0
        self._closure = closure
        self._optimizing = True
        self.busy = not closure
        self._optimizer.__enter__()

    def optimizer_ends(self, optimizer: Any) -> None:
        """An optimizer's step has returned."""
        if self._stepping is None or self.in_backward:
            return
        if self._depth:
            self._depth -= 1
            return
        if self._optimizing:
            self._optimizer.__exit__(None, None, None)
            self.busy = self._optimizing = False
        self._closure = self._unstepped = False
        self._stepping = None
        if id(optimizer) == self._closer:
            self._others = 0
        elif not self._closes_step(optimizer):
            return
        if not self.boundary_from_outside:
            self.end_step()

    def _leave_optimizer(self, calls_closure: bool = False) -> None:
        """The optimizer's own work ends, or stops because its closure is called again."""
        if self._optimizing:
            if calls_closure and self._untouched:
                self.recorder.cancel_phase("optimizer")  # it has done nothing yet
            else:
                self._optimizer.__exit__(None, None, None)
            self.busy = self._optimizing = False

    def _closes_step(self, optimizer: Any) -> bool:
        number = id(optimizer)
        seen = self._seen.get(number)
        if seen is None or seen() is not optimizer:  # a new one may have the id of one that is no more
            self._seen[number] = weakref.ref(optimizer)
            self._closer = number
        self._others = 0 if number == self._closer else self._others + 1
        if self._others > LOST_CLOSER:
            self._closer, self._others = number, 0
        return number == self._closer

    # --- steps ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Something is computed while an optimizer steps, or before one has: that may end what was before."""
        self._recover()
        self._leave_optimizer(calls_closure=True)
        self._look_for_unseen_step()
        self._untouched = False

    def _open_step(self) -> Step | None:
        r = self.recorder
        if self._step is None and r.open_step is not None:
            self._step, self._begun_here = r.open_step, False  # an integration's
        elif self._step is None and self._started:
            self._step, self._begun_here = Step(), True
            self._step.__enter__()
        return self._step

    def _look_for_unseen_step(self) -> None:
        """End the step if a parameter has changed since the backward pass and no optimizer said so.

        It may have stepped within compiled code, or be none of torch's.
        """
        if self._unstepped and not self.in_backward and self._stepping is None:
            parameter = self.watched()
            if parameter is not None and parameter._version != self._version:
                self._end_step()

    def _end_step(self) -> None:
        if not self.boundary_from_outside:
            self.end_step()

    def end_step(self) -> None:
        """The step is over."""
        self._step = None
        self.evaluated = self._unstepped = False
        self.steps_without_forward += 1
        if not self._started and self.recorder.open_step is None:
            self.forget_pending()
            self.recorder.next_index = max(self.recorder.next_index, 1)
        self._started = True
        r = self.recorder
        if r.open_step is not None and r.tracks is None:
            r.open_step.__exit__(None, None, None)
        else:
            r.end_step()

    def _give_up_step(self) -> None:
        """The script records its steps itself after all: the one that was begun here must not swallow them."""
        begun, self._step = self._step, None
        if self._begun_here and begun is not None and self.recorder.open_step is begun:
            self.recorder.forget_step()

    def _recover(self) -> None:
        """An optimizer's step that raised has never said that it ended."""
        if self._stepping is not None and not self._closure:
            self._leave_optimizer()
            self._stepping = None


def is_data_worker() -> bool:
    """Whether this process is a worker of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def make() -> Loop:
    """The loop of this process, and of every child that it forks."""
    loop = Loop()
    os.register_at_fork(after_in_child=loop.reset)
    return loop

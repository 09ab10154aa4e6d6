"""Forward passes that no backward pass follows: requests to a model, and loops over it.

A process that has not trained is one for inference as soon as it shows that: at once where it calls transformers'
`generate`, and after a second of forward passes otherwise. From its first backward pass on it trains, whatever it
did before, and what it computes without gradients then is part of that training (`evaluation`). So what is
listened to here is given back at that moment, and costs a training nothing.

What is recorded:

- a call of `generate` is a request, with the phases ``prefill`` and ``decode`` (`generation`, `requests`);
- where a script decodes by itself, from a prompt on with one token a forward pass, its tokens up to the next
  prompt are a request likewise (`sequences`);
- else each call of an outermost module is a step, with the phase ``forward``, and ``dataload`` and ``h2d`` before.
"""

from __future__ import annotations

import sys
from _thread import RLock, _local, get_ident
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from llmtop.instrument.auto.inference import training_generation
from llmtop.instrument.auto.inference.called_modules import Forwards
from llmtop.instrument.auto.inference.generation import Generation
from llmtop.instrument.auto.inference.requests import Request
from llmtop.instrument.auto.inference.sequences import Sequences
from llmtop.instrument.auto.model.batch_shape import count_tokens
from llmtop.instrument.auto.training.loop import is_data_worker
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.pytorch import dynamo
from llmtop.instrument.pytorch.search import own_dict
from llmtop.instrument.record.recorder import Step, phase_of

if TYPE_CHECKING:
    from llmtop.instrument.auto.training.loop import Loop
    from llmtop.instrument.auto.training.timed_modules import Modules
    from llmtop.instrument.record.recorder_parts import Kind, OpenStep

LOOKED_AT_NS = 1_000_000_000
"""Forward passes go on for so long before a process is taken for one for inference: many trainings run a few
batches of validation first."""
FORWARDS = "the forward passes of this script"
_TRAINING: Mapping[str, frozenset[str]] = {
    "transformers.trainer": frozenset({"train", "_inner_training_loop"}),
    "lightning.pytorch.trainer.trainer": frozenset({"fit", "_fit_impl"}),
    "pytorch_lightning.trainer.trainer": frozenset({"fit", "_fit_impl"}),
}
"""Functions of libraries, by module, below which all is part of a training."""
_gradients = torch.is_grad_enabled


class _Here(_local):
    """Open calls of the calling thread."""

    inside = False
    """True in a forward pass of an outermost module."""
    request: Request | None = None
    """A call of `generate`."""
    step: Step | None = None
    """The step that the forward pass is."""


class Inference:
    """Forward passes of a process that has not trained yet. It has the interface of a loop for timed classes."""

    optimizing = False

    def __init__(self, loop: Loop) -> None:
        self._training = loop
        self.recorder = loop.recorder
        self._phases = phase_of("prefill"), phase_of("decode"), phase_of("generate")
        self._forward = phase_of("forward")
        self.over = self.recorder.off
        """True if the process trains, or must not be observed: then nothing here has any effect."""
        self._begin()
        self._generation = Generation(self)
        self._forwards = Forwards(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickling a timed class by value gives one that is not timed."""
        return type(None), ()

    def _begin(self) -> None:
        self._here = _Here()
        self._beginning = RLock()
        """Held while a step begins: of two threads that begin one at once, one finds the other's."""
        self._records = ""
        """Recorded kind: "generate", "tokens" or "forwards"; empty until that is known."""
        self._since = 0
        self._sequences = Sequences()
        self._by_hand: Request | None = None
        self._computing = False
        """True if a forward pass of a request by hand is under way."""
        self._computed = 0
        """When the last forward pass of a request by hand ended."""

    def forget(self) -> None:
        """Begin anew: in a forked child, which has computed nothing yet."""
        self._begin()

    def trains(self, modules: Modules) -> bool:
        """Return the first backward pass, or step of an optimizer: from now on this is a training.

        Args:
            modules: what times the classes of modules from now on.

        Returns:
            Whether it was published as one for inference until now.
        """
        if self.over:
            return False
        self.over = True
        self._generation.restore()
        training_generation.listen(self._training)
        modules.take_over(self._forwards.hand_over())
        recorder, facts = self.recorder, self.recorder.facts
        if not facts.inference:
            return False
        facts.inference = False
        facts.set_kind("step", recorder.ring.count)
        facts.changed()
        recorder.next_index, recorder.previous = 0, -1
        recorder.tokens_in.clear()
        return True

    # --- what a timed class asks of a loop --------------------------------------------------------

    @property
    def loop(self) -> Inference:
        """Itself."""
        return self

    @property
    def thread(self) -> int:
        """The calling thread: requests may come in any."""
        return get_ident()

    @property
    def busy(self) -> bool:
        """Return True if a forward pass is within another one, or within a request."""
        here = self._here
        return here.inside or here.request is not None

    def recovers(self) -> bool:
        """No optimizer steps here."""
        return False

    def failed(self, error: BaseException) -> None:
        """Called within `except` where seeing a call has failed: note that it cannot be seen, and why."""
        self.lost(FORWARDS, error)

    def lost(self, what: str, error: BaseException) -> None:
        """Called within `except`: something here failed, or was interrupted. The next request begins anew.

        Raises:
            BaseException: `error`, where it is the script's.
        """
        here, r = self._here, self.recorder
        step: OpenStep | None = here.step if here.request is None else here.request.step
        here.inside = self._computing = False
        here.request, here.step, self._by_hand = None, None, None
        if step is not None and r.open_step is step:
            r.step_failed(step)
        report_internal_error(what, error)

    # --- forward passes ---------------------------------------------------------------------------

    def begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], None] | None:
        """An outermost module is called, outside of `generate`.

        Returns:
            What is to be called when it has returned or raised; None if it may be a training's.
        """
        if self._stands_down() or (_gradients() and module.training):
            return None
        if "_is_replica" in own_dict(module, "__dict__"):
            return None  # DataParallel calls them in threads of its own, each for a part of one batch
        here, r = self._here, self.recorder
        here.inside = True
        is_part = self._forwards.note_call()
        if self._records == "generate":
            r.saw_work()
            return self._ends
        if is_part:
            self._sequences = Sequences()  # the next ones are of another module
        goes_on = not is_part and self._sequences.go_on(module, args, kwargs)
        with self._beginning:
            if is_part or (not self._records and not self._shows()) or not self._is_free(goes_on):
                return self._ends
            if self._records == "forwards" and not goes_on and self._sequences.decode and r.tracks is None:
                self._attach("tokens")  # too slow a model to show it within a second
            if self._records == "tokens":
                self._token(module, goes_on)
                return self._token_ends
            step = here.step = self._step()
            self._enter(step)
        self._forward.__enter__()
        step.samples = count_tokens(step, args, kwargs) or step.samples
        return self._forward_ends

    def _ends(self) -> None:
        self._here.inside = False
        if not self._records:
            self.recorder.forget_pending()  # else the first step would have the data of all passes before it

    def _forward_ends(self) -> None:
        here = self._here
        here.inside = False
        self._forward.__exit__(None, None, None)
        step, here.step = here.step, None
        if step is not None:
            self._leave(step)

    def _shows(self) -> bool:
        """Return True if the forward passes so far show that this is no training; publishes the process then."""
        now = perf_counter_ns()
        self._since = self._since or now
        if now - self._since < LOOKED_AT_NS or not self._may_be():
            return False
        self._attach("tokens" if self._sequences.decode else "forwards")
        return True

    # --- tokens that the script decodes by itself -------------------------------------------------

    def _token(self, module: Any, goes_on: bool) -> None:
        self._computing = True
        request = self._by_hand
        if goes_on:
            if request is not None:  # else the prompt was before all this was known
                request.first_token()
                request.tokens_out = (request.tokens_out or 0) + 1
            return
        self._end_request()
        request = self._by_hand = self._request(module, ends_itself=False)
        if self._sequences.shape is not None:
            batch, length = self._sequences.shape
            request.came_to(batch, 1)
            request.tokens_in = batch * length
        self._enter(request.step)
        request.begin(perf_counter_ns())

    def _token_ends(self) -> None:
        self._here.inside = self._computing = False
        self._computed = perf_counter_ns()
        self.recorder.saw_work()

    def _end_request(self) -> None:
        """The request before ended with its last forward pass."""
        request, self._by_hand = self._by_hand, None
        if request is not None and self.recorder.open_step is request.step:
            request.end(self._computed)
            self._leave(request.step)

    # --- generate ---------------------------------------------------------------------------------

    def request_begins(self, model: Any) -> Request | None:
        """`generate` is called.

        Returns:
            The request that this is; None if it is part of another one, or of a training.
        """
        if self._stands_down():
            return None
        here = self._here
        if here.request is not None:
            here.request.drafts()
            return None
        if here.inside:
            return None
        with self._beginning:
            if not self._is_free():
                return None
            self._end_request()
            if self._records != "generate":
                if not self._may_be():
                    return None
                self._attach("generate")
            request = self._request(model, ends_itself=True)
            self._enter(request.step)
        here.request = request
        request.begin(perf_counter_ns())
        return request

    def prepares(self, model: Any) -> Request | None:
        """Return a model prepares the inputs of a forward pass; returns the request that this is for, if any.

        Its `preparing` is to be set back when that has been done.
        """
        request = self._here.request
        if request is None or request.model != id(model) or request.preparing:
            return None
        request.preparing = True
        request.prepares()
        return request

    def request_ends(self, request: Request) -> None:
        """`generate` has returned."""
        now = perf_counter_ns()
        self._here.request = None
        request.end(now)
        self._leave(request.step)

    def request_failed(self, request: Request) -> None:
        """`generate` was left by an exception: its time is not counted."""
        self._here.request = None
        request.give_up()

    # --- what all of them do ----------------------------------------------------------------------

    def _stands_down(self) -> bool:
        r = self.recorder
        return self.over or r.manual_used or r.off or self._training.boundary_from_outside is not None

    def _may_be(self) -> bool:
        """Return True if it may be an inference process: neither a data loader's worker nor started by a
        training."""
        return not is_data_worker() and not _is_below_training()

    def _is_free(self, goes_on: bool = False) -> bool:
        """Return True if a step may begin in the calling thread. Steps of two threads at once overlap from then
        on.

        Args:
            goes_on: whether it is one more token of sequences that are decoded by hand.
        """
        r = self.recorder
        if r.tracks is not None or r.open_step is None:
            return True
        if self._by_hand is not None and r.open_step is self._by_hand.step:
            if r.thread != get_ident() and not goes_on and not self._computing:
                r.thread = get_ident()  # the next prompt comes in another thread
            if r.thread == get_ident():
                return True
        elif r.thread == get_ident():
            return False  # an integration's, or one that the script has begun
        self._by_hand = None
        if self._records == "tokens":
            self._records = "forwards"  # from here on it is unknown which tokens follow which
        r.count_left_out("requests that were under way when others came beside them")
        r.facts.set_kind("request", r.ring.count)
        r.go_concurrent()
        return True

    def _attach(self, records: str) -> None:
        """Publish this process from now on, as one for inference."""
        self._records = records
        self._by_hand = None
        self._forwards.stop_searching()
        recorder, facts = self.recorder, self.recorder.facts
        kind: Kind = "step" if records == "forwards" else "request"
        with dynamo.Paused():
            facts.inference = facts.auto = True
            facts.set_kind(kind, recorder.ring.count)
            facts.changed()
            if not recorder.attached:
                recorder.thread = get_ident()
                recorder.attach()
                dynamo.keep_out()  # also of what has been loaded to publish
            else:
                recorder.wake_server()

    def _step(self) -> Step:
        # Of a kind that may overlap only where they do: the others have the GPU's times, and can be paused.
        r = self.recorder
        return Step(kind="step") if r.tracks is None else Step(kind="request")

    def _request(self, model: Any, *, ends_itself: bool) -> Request:
        return Request(model, self._step(), self.recorder, self._phases, ends_itself=ends_itself)

    def _enter(self, step: OpenStep) -> None:
        r = self.recorder
        if r.tracks is None and r.thread == get_ident() and (r.node is not r.root or r.cut):
            r.begin_around(step)
        else:
            step.__enter__()

    def _leave(self, step: OpenStep) -> None:
        r = self.recorder
        if r.tracks is None and r.thread == get_ident() and r.node is not r.root:
            r.cut_open()
        step.__exit__(None, None, None)


def _is_below_training() -> bool:
    """Return True if a library that trains has called this, if it has not computed a gradient yet."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = _TRAINING.get(str(frame.f_globals.get("__name__")))
        if names is not None and frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

"""One request to a model: its prefill, up to the first token, and its decoding."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from llmtop.instrument.steps.ring import SIZE

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Phase, Recorder
    from llmtop.instrument.record.recorder_parts import OpenStep


class Request:
    """A request that is under way in one thread. Keeps neither model nor tensor alive."""

    __slots__ = (
        "_decode",
        "_decoding",
        "_ends_itself",
        "_generate",
        "_prefill",
        "_prepared",
        "_recorder",
        "begun",
        "model",
        "prefills",
        "preparing",
        "sequences",
        "step",
        "tokens_in",
        "tokens_out",
    )

    def __init__(
        self,
        model: Any,
        step: OpenStep,
        recorder: Recorder,
        phases: tuple[Phase, Phase, Phase],
        *,
        ends_itself: bool,
    ) -> None:
        """Describe it.

        Args:
            model: what answers it, of which only the id() is kept.
            step: what it is recorded as.
            recorder: where.
            phases: prefill, decode, and the name of the whole where these cannot be distinguished.
            ends_itself: whether its end is known when it comes, as the return of a call is.
        """
        self.model = id(model)
        self.step = step
        self._recorder = recorder
        self._prefill, self._decode, self._generate = phases
        self._decoding = False
        self._ends_itself = ends_itself
        self._prepared = 0
        self.preparing = False
        """True if inputs are being prepared: a class's own function calls that of its parent."""
        self.begun = 0
        self.prefills = 1
        """Forward passes that the prompt takes."""
        self.tokens_in: int | None = None
        self.sequences: int | None = None
        self.tokens_out: int | None = None
        """Tokens of each sequence."""

    def begin(self, now: int) -> None:
        """The prefill begins, at `now` (perf_counter ns)."""
        self.begun = now
        self._prefill.__enter__()

    def prepares(self) -> None:
        """The inputs of a forward pass are being prepared: the token before it is known."""
        self._prepared += 1
        if self._prepared == self.prefills + 1:
            self.first_token()

    def drafts(self) -> None:
        """Another model is asked for the tokens that come next: those before are known."""
        if self._prepared >= self.prefills:
            self.first_token()

    def first_token(self) -> None:
        """The first token is known; what follows is decoding."""
        if not self._decoding:
            self._decoding = True
            self._prefill.__exit__(None, None, None)
            self._decode.__enter__()

    def came_to(self, sequences: int | None, tokens: int | None) -> None:
        """How many sequences it gave, and how many new tokens each has; None where that is not known."""
        self.sequences, self.tokens_out = sequences, tokens

    def end(self, now: int) -> None:
        """It was answered at `now`, or somewhat earlier: write down what is known of it."""
        r = self._recorder
        if self._decoding:
            self._leave(self._decode, now)
        elif self.tokens_out == 1:
            self._leave(self._prefill, now)
        else:  # the time of its first token is unknown
            r.cancel_phase(self._prefill.name)
            if r.tracks is None:
                r.add_phase(self._generate.name, self.begun, now - self.begun)
        step = self.step
        step.samples = self.sequences
        if self.sequences is not None and self.tokens_out is not None:
            step.tokens = self.sequences * self.tokens_out
        if self.tokens_in is not None:
            keep_input(r, step, self.tokens_in)

    def give_up(self) -> None:
        """It was left by an exception: nothing of it is counted."""
        (self._decode if self._decoding else self._prefill).__exit__(None, None, None)
        self.step.__exit__(RuntimeError, None, None)

    def _leave(self, phase: Phase, ended: int) -> None:
        """Leave a phase that ended at `ended`, which of a loop by hand shows only when the next request begins."""
        r = self._recorder
        phase.__exit__(None, None, None)
        node = r.node.children.get(phase.name) if r.tracks is None else None
        if node is not None and not self._ends_itself:
            r.cells[node.slot] -= max(0, perf_counter_ns() - ended)


def keep_input(recorder: Recorder, step: OpenStep, tokens: int) -> None:
    """Store the number of prompt tokens of an open step, by its start, as rows of the ring are."""
    inputs = recorder.tokens_in
    # A step that began before steps could overlap has no track.
    begun = recorder.begun if recorder.tracks is None else getattr(getattr(step, "track", None), "begun", None)
    if begun is not None:
        inputs[begun] = tokens
        if len(inputs) > SIZE:
            del inputs[next(iter(inputs))]

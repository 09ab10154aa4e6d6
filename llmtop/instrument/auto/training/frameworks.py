"""Facts that a training library has about its training: number of steps, batches per step, logged values.

Nothing is given to a library: no callback, no logger, no hook, which a script would find in its lists, logs and
pickles. Its Trainer is found by the call stack, since whatever ends a step is called by it, and then read from the
side through a weak reference: attributes alone, and none that would make the library do something (that of
Lightning which counts the steps to come, for one, sets up loaders). What a version of a library has not got is
absent. Two calls of libraries are listened to: `Accelerator.log`, since nothing keeps what passes through it, and
`LightningModule.log`, since Lightning keeps the last value of a name alone, without its step.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

MOST_ENTRIES = 64
"""Most entries of a Trainer's log that are read at once: the last ones."""
MOST_POINTS = 512
"""Values with their steps that are kept until they are taken."""
_NOT_LOGGED = frozenset({"step"})
"""Which the Trainer puts beside what it logs."""


class Framework(Protocol):
    """A library that runs the training, and what can be read of it at any time, from any thread."""

    lr_name: str
    """How it calls the learning rate."""
    has_own_steps: bool
    """True if `take_points` returns what it logs; else what it has logged last belongs to the present step."""

    def belongs_to(self, trainer: Any) -> bool:
        """Return True if this is about that object."""

    def steps_done(self) -> int | None:
        """Return how many optimizer steps it has counted in the fit under way; None when that is over, and
        where it does not count them as llmtop does. Asked at each step."""

    def total_steps(self) -> int | None:
        """Return how many it will have, by its own limits; None for none."""

    def accumulation(self, most_passes: int) -> int | None:
        """Return how many batches make a step; `most_passes` backward passes have been seen in one."""

    def logged_metrics(self) -> dict[str, Any]:
        """Its latest logged values: numbers, and tensors that may be on a GPU."""

    def take_points(self) -> list[tuple[int, str, Any]]:
        """Return the step, the name and the value of all that it logged since the last call."""


class HuggingFaceTrainer:
    """The Trainer of transformers, and what is derived from it."""

    lr_name = "learning_rate"
    has_own_steps = True

    def __init__(self, trainer: Any) -> None:
        self._trainer = _weak(trainer)
        self._state = _weak(getattr(trainer, "state", None))
        self._read = 0
        self._values: dict[str, Any] = {}
        self._points: list[tuple[int, str, Any]] = []

    def belongs_to(self, trainer: Any) -> bool:
        """See `Framework`; each fit of a Trainer has a state of its own."""
        return self._trainer() is trainer and self._state() is getattr(trainer, "state", None)

    def steps_done(self) -> int | None:
        """See `Framework`."""
        try:
            return self._state().global_step if self._trainer().is_in_train else None
        except AttributeError:
            return None  # either is no more

    def total_steps(self) -> int | None:
        """See `Framework`."""
        return _count(getattr(self._state(), "max_steps", None))

    def accumulation(self, most_passes: int) -> int | None:
        """See `Framework`."""
        return _count(getattr(getattr(self._trainer(), "args", None), "gradient_accumulation_steps", None))

    def logged_metrics(self) -> dict[str, Any]:
        """See `Framework`. The epoch is that of the last step, whether it was logged or not."""
        state = self._state()
        history = getattr(state, "log_history", None)
        if type(history) is list:
            fresh = history[max(self._read, len(history) - MOST_ENTRIES) :]
            self._read = len(history)
            for entry in fresh:
                self._values.update((name, entry[name]) for name in list(entry) if name not in _NOT_LOGGED)
                step = entry.get("step")
                if type(step) is int:
                    index = max(step - 1, 0)  # it counts from 1
                    self._points += [(index, name, value) for name, value in list(entry.items()) if name != "step"]
            del self._points[:-MOST_POINTS]
        epoch = getattr(state, "epoch", None)
        if epoch is not None:
            self._values["epoch"] = epoch
        return self._values

    def take_points(self) -> list[tuple[int, str, Any]]:
        """See `Framework`; of the entries that `logged_metrics` has read."""
        taken, self._points = self._points, []
        return taken


class LightningTrainer:
    """The Trainer of Lightning, under either of its names."""

    lr_name = "lr"

    def __init__(self, trainer: Any, *, has_own_steps: bool = False) -> None:
        """`has_own_steps`: what `LightningModule.log` is given is kept at once, with the step of that moment."""
        self.has_own_steps = has_own_steps
        self._trainer = _weak(trainer)
        self._state = _weak(getattr(trainer, "state", None))
        self._progress = _weak(_progress_of(trainer))

    def belongs_to(self, trainer: Any) -> bool:
        """See `Framework`; that of a fit whose steps are counted elsewhere is another."""
        return self._trainer() is trainer and self._progress() is _progress_of(trainer)

    def steps_done(self) -> int | None:
        """See `Framework`."""
        try:
            return None if self._state().stage is None else self._progress().completed
        except AttributeError:
            return None  # either is no more, or was not to be counted

    def total_steps(self) -> int | None:
        """See `Framework`.

        Without a number of steps as limit: all epochs' batches, unless the script takes the steps itself or
        changes how many batches make one.
        """
        trainer = self._trainer()
        most = _count(getattr(trainer, "max_steps", None))
        epochs = _count(getattr(trainer, "max_epochs", None))
        batches = getattr(trainer, "num_training_batches", None)
        each = self.accumulation(0)
        if epochs is None or each is None or not isinstance(batches, int) or batches <= 0:
            return most
        of_epochs = epochs * math.ceil(batches / each)
        return of_epochs if most is None else min(most, of_epochs)

    def accumulation(self, most_passes: int) -> int | None:
        """See `Framework`."""
        trainer = self._trainer()
        module = getattr(trainer, "lightning_module", None)
        changing = any(type(one).__name__ == "GradientAccumulationScheduler" for one in _callbacks(trainer))
        if changing or not getattr(module, "automatic_optimization", False):
            return None
        return _count(getattr(trainer, "accumulate_grad_batches", None))

    def logged_metrics(self) -> dict[str, Any]:
        """See `Framework`. Read where Lightning keeps it: to ask for it may compute metrics over all ranks."""
        trainer = self._trainer()
        connector = getattr(trainer, "_logger_connector", None)
        kept = getattr(connector, "_callback_metrics", None)
        values = dict(kept) if isinstance(kept, dict) else {}
        epoch = getattr(trainer, "current_epoch", None)
        if epoch is not None:
            values.setdefault("epoch", epoch)
        return values

    def take_points(self) -> list[tuple[int, str, Any]]:
        """See `Framework`: it keeps the last values alone."""
        return []


class Accelerated:
    """A loop of the script's own with Accelerate's optimizer and backward pass."""

    lr_name = "lr"
    has_own_steps = True

    def __init__(self, logged: dict[str, Any]) -> None:
        """`logged` is where `listen_to_accelerate` keeps what passes."""
        self._logged = logged

    def belongs_to(self, trainer: Any) -> bool:
        """See `Framework`."""
        return trainer is Accelerated

    def steps_done(self) -> int | None:
        """See `Framework`: only the script may count."""
        return None

    def total_steps(self) -> int | None:
        """See `Framework`."""
        return None

    def accumulation(self, most_passes: int) -> int | None:
        """See `Framework`. Settings of an Accelerator have no effect where the script does not use them."""
        shared = getattr(
            getattr(sys.modules.get("accelerate.state"), "GradientState", None), "_shared_state", None
        )
        plugin = shared.get("plugin_kwargs") if isinstance(shared, Mapping) else None
        told = _count(plugin.get("num_steps", 1)) if isinstance(plugin, Mapping) else None
        return told if told is not None and most_passes >= told else None

    def logged_metrics(self) -> dict[str, Any]:
        """See `Framework`."""
        return self._logged.copy()

    def take_points(self) -> list[tuple[int, str, Any]]:
        """See `Framework`: what is given to `Accelerator.log` is kept at once, with the step of that moment."""
        return []


_OWNERS: dict[str, Callable[[Any], Framework]] = {
    "transformers.trainer": HuggingFaceTrainer,
    "lightning.pytorch.trainer.trainer": LightningTrainer,
    "pytorch_lightning.trainer.trainer": LightningTrainer,
}
"""Modules whose methods run a training -> what reads the object that they are methods of."""
_LIGHTNING_MODULES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_WITHOUT_OWNER = frozenset({"accelerate.accelerator", "accelerate.optimizer"})


def find_running(known: Framework | None, accelerated: Callable[[], Framework]) -> Framework | None:
    """Return the framework that runs the calling code: `known` if it still runs; None for a loop of the script's
    own.

    A trainer comes before Accelerate, which it may use. Takes some microseconds.
    """
    frame: FrameType | None = sys._getframe(1)
    by_accelerate = False
    while frame is not None:
        module = frame.f_globals.get("__name__")
        make = _OWNERS.get(module) if type(module) is str else None
        if make is not None:
            trainer = _self_of(frame)
            if trainer is not None:
                return known if known is not None and known.belongs_to(trainer) else make(trainer)
        by_accelerate = by_accelerate or module in _WITHOUT_OWNER
        frame = frame.f_back
    if not by_accelerate:
        return None
    return known if known is not None and known.belongs_to(Accelerated) else accelerated()


def _self_of(frame: FrameType) -> Any:
    """Return the object of a running method; None for other functions."""
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    values = frame.f_locals
    found = values.get("self")
    if sys.version_info < (3, 13):
        # A copy that the frame would keep: with it the batch and the loss of this step, for as long as it runs.
        values.clear()
    return found


def listen_to_accelerate(tell: Callable[[Any], None]) -> bool:
    """Call `tell` with each argument of `Accelerator.log`; it must not raise.

    Returns:
        Whether that could be done; not before the script has imported Accelerate.
    """
    kind = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    log = vars(kind).get("log") if isinstance(kind, type) else None
    if not callable(log):
        return False

    @functools.wraps(log)
    def log_and_publish(self: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        tell(values)
        return log(self, values, *args, **kwargs)

    kind.log = log_and_publish  # type: ignore[union-attr]  # Accelerate is not followed by mypy here
    return True


def listen_to_lightning(tell: Callable[[Any], None]) -> bool:
    """Call `tell` with a dictionary of each value that a LightningModule logs in training; it must not raise.

    Returns:
        Whether that could be done; not before the script has imported Lightning.
    """
    kinds = [getattr(sys.modules.get(name), "LightningModule", None) for name in _LIGHTNING_MODULES]
    found = [kind for kind in kinds if isinstance(kind, type) and callable(vars(kind).get("log"))]
    for kind in found:
        kind.log = _publishing(vars(kind)["log"], tell)  # type: ignore[attr-defined]  # see listen_to_accelerate
    return bool(found)


def _publishing(log: Callable[..., Any], tell: Callable[[Any], None]) -> Callable[..., Any]:
    import torch  # which Lightning has loaded

    is_compiling, has_gradients = torch.compiler.is_compiling, torch.is_grad_enabled

    @functools.wraps(log)
    def log_and_publish(self: Any, name: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and has_gradients():
            tell({name: value})
        return log(self, name, value, *args, **kwargs)

    return log_and_publish


def _progress_of(trainer: Any) -> Any:
    """Return the step counter of Lightning's one optimizer; None for several, which Lightning counts together."""
    optimizers = getattr(trainer, "optimizers", None)
    if not isinstance(optimizers, list) or len(optimizers) != 1:
        return None
    epoch_loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    if getattr(getattr(trainer, "lightning_module", None), "automatic_optimization", True):
        progress = getattr(getattr(epoch_loop, "automatic_optimization", None), "optim_progress", None)
        return getattr(getattr(getattr(progress, "optimizer", None), "step", None), "total", None)
    progress = getattr(getattr(epoch_loop, "manual_optimization", None), "optim_step_progress", None)
    return getattr(progress, "total", None)


def _nothing() -> None:
    """A reference to nothing."""


def _weak(thing: Any) -> Callable[[], Any]:
    return _nothing if thing is None else weakref.ref(thing)


def _callbacks(trainer: Any) -> list[Any]:
    found = getattr(trainer, "callbacks", None)
    return found if isinstance(found, list) else []


def _count(number: Any) -> int | None:
    return number if type(number) is int and number > 0 else None

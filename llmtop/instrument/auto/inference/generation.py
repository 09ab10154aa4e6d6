"""Requests to a language model of transformers: `generate`, from its call to its return.

Two functions of the library are replaced while the process has not trained. `GenerationMixin.generate` is the
begin and the end of a request; and what a model prepares its inputs with (`prepare_inputs_for_generation`, which a
class may override) is called once a forward pass, right after the token before is known: the second call ends the
prefill. Nothing is added to a request: no streamer, no logits processor, no stopping criterion, and the forward
passes themselves are let alone, compiled or not.

Tokens are counted by shape, so that padding behind an early end counts. What a beam search gives up does not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from llmtop.instrument.auto.inference.requests import Request
from llmtop.instrument.auto.inference.sequences import shape_of
from llmtop.instrument.auto.patches.replacements import AfterImport, Replaced

MODULE = "transformers.generation.utils"
GENERATE = "the requests to transformers' generate()"
_PREPARE = "prepare_inputs_for_generation"
_is_compiling = torch.compiler.is_compiling


class Asked(Protocol):
    """Receiver of requests."""

    over: bool

    def lost(self, what: str, error: BaseException) -> None:
        """Called within `except`: something failed here."""

    def request_begins(self, model: Any) -> Request | None:
        """`generate` is called; returns the request that this is, if it is one."""

    def prepares(self, model: Any) -> Request | None:
        """Return a model prepares the inputs of a forward pass; returns the request that this is for, if any."""

    def request_ends(self, request: Request) -> None:
        """`generate` has returned."""

    def request_failed(self, request: Request) -> None:
        """`generate` was left by an exception."""


class Generation:
    """Listens to `generate` as soon as transformers has been imported."""

    def __init__(self, inference: Asked) -> None:
        self._inference = inference
        self._replaced = Replaced()
        self._listened: set[type] = set()
        self._waits = AfterImport((MODULE,), self._listen)

    def restore(self) -> None:
        """Leave the library alone again."""
        self._waits.forget()
        self._replaced.restore()
        self._listened.clear()

    def _listen(self, module: str) -> None:
        kind = getattr(sys.modules.get(module), "GenerationMixin", None)
        run = None if kind is None else vars(kind).get("generate")
        if not callable(run) or self._inference.over:
            return
        inference = self._inference

        @functools.wraps(run)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            request = None
            if not _is_compiling():
                try:
                    request = self._begins(model, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the door: see guard
                    inference.lost(GENERATE, error)
            if request is None:
                return run(model, *args, **kwargs)
            try:
                output = run(model, *args, **kwargs)
            except BaseException:
                try:
                    inference.request_failed(request)
                except BaseException as error:  # noqa: BLE001 - the door
                    inference.lost(GENERATE, error)
                raise
            try:
                request.came_to(*_new_tokens(model, args, kwargs, output))
                inference.request_ends(request)
            except BaseException as error:  # noqa: BLE001 - the door
                inference.lost(GENERATE, error)
            return output

        self._replaced.put(kind, "generate", generate)

    def _begins(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request | None:
        self._listen_to(type(model))
        request = self._inference.request_begins(model)
        if request is not None:
            prompt = _ids(args, kwargs)
            if prompt is not None:
                request.tokens_in = prompt[0] * prompt[1]
            request.prefills = _prefills(model, args, kwargs, prompt)
        return request

    def _listen_to(self, kind: type) -> None:
        """Notify the request when a model of that class prepares the inputs of a forward pass."""
        if kind in self._listened:
            return
        self._listened.add(kind)
        for owner in kind.__mro__:
            # A class of the script's own may be pickled by value: that which it inherits is listened to instead.
            if _PREPARE not in vars(owner) or owner.__module__ == "__main__":
                continue
            if owner not in self._listened or owner is kind:
                self._listened.add(owner)
                self._replaced.put(owner, _PREPARE, _telling(vars(owner)[_PREPARE], self._inference))
            return


def _telling(run: Any, inference: Asked) -> Any:
    @functools.wraps(run)
    def prepare_inputs_for_generation(model: Any, *args: Any, **kwargs: Any) -> Any:
        request = None
        if not _is_compiling():
            try:
                request = inference.prepares(model)
            except BaseException as error:  # noqa: BLE001 - the door: see guard
                inference.lost(GENERATE, error)
        if request is None:
            return run(model, *args, **kwargs)
        try:
            return run(model, *args, **kwargs)
        finally:
            request.preparing = False

    return prepare_inputs_for_generation


def _ids(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int] | None:
    """Sequences and tokens each that a request came with; None where it did not come with tokens."""
    ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
    return shape_of(ids)


def _prefills(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], prompt: tuple[int, int] | None) -> int:
    """Return how many forward passes the prompt takes: one, but where it is cut into chunks."""
    config = kwargs.get("generation_config", args[1] if len(args) > 1 else None)
    chunk = kwargs.get("prefill_chunk_size")
    for one in (config, getattr(model, "generation_config", None)):
        chunk = getattr(one, "prefill_chunk_size", None) if chunk is None else chunk
    if type(chunk) is not int or chunk < 1 or prompt is None:
        return 1
    return max(1, -(-prompt[1] // chunk))


def _new_tokens(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> tuple[int | None, int | None]:
    """Return how many sequences came out, and how many new tokens each has."""
    shape = shape_of(output if isinstance(output, torch.Tensor) else getattr(output, "sequences", None))
    if shape is None:
        return None, None
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        given = shape_of(kwargs.get("decoder_input_ids"))
        before = 1 if given is None else given[1]  # the token that every answer starts with
    else:
        prompt = _ids(args, kwargs)
        before = 0 if prompt is None else prompt[1]
    return shape[0], max(0, shape[1] - before)

"""Phases and steps as decorators: of functions, coroutine functions, generators and async generators.

A generator is timed while it runs, not while it is suspended. A coroutine is timed from its first await to its
return: what other tasks do meanwhile is in that time, as for ``with`` in its body.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from llmtop.instrument.pytorch.compile import is_compiling

Timed = Callable[[], AbstractContextManager[Any]]


def decorate(function: Callable[..., Any], timed: Timed) -> Callable[..., Any]:
    """Return `function` with each of its runs inside a fresh `timed()`."""
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, timed)
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, timed)
    if inspect.isgeneratorfunction(function):
        return _generator(function, timed)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        with timed():
            return function(*args, **kwargs)

    return run


def _coroutine(function: Callable[..., Any], timed: Timed) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with timed():
            return await function(*args, **kwargs)

    return run


def _generator(function: Callable[..., Any], timed: Timed) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(next, inner)
        while True:
            try:
                with timed():
                    value = resume()
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield value
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever was thrown in goes to the generator itself
                resume = functools.partial(inner.throw, error)
            else:
                resume = functools.partial(inner.send, sent)

    return run


def _async_generator(function: Callable[..., Any], timed: Timed) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(inner.asend, None)
        while True:
            try:
                with timed():
                    value = await resume()
            except StopAsyncIteration:
                return
            try:
                sent = yield value
            except GeneratorExit:
                await inner.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - whatever was thrown in goes to the generator itself
                resume = functools.partial(inner.athrow, error)
            else:
                resume = functools.partial(inner.asend, sent)

    return run

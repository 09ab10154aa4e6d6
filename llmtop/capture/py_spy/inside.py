"""Stacks that an attached training samples of its own threads, where py-spy cannot read them from outside."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from llmtop.capture.py_spy.stacks import ThreadStack, sort_threads, system_name
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.protocol import client, socket_dir, wire
from llmtop.stacks.samples import MAIN, Frame, SampledProcess, Stack, ThreadId
from llmtop.system import procfs

RATE_HZ = 20.0
ANSWER_SECONDS = 5.0
"""A training that holds Python's lock in a library's call answers when that returns."""


class StackRequest:
    """One request to one training, answered or not."""

    def __init__(self, socket: Path, seconds: float) -> None:
        """Send the request.

        Args:
            socket: of the training.
            seconds: longest sampling time; 0 for one sample.

        Raises:
            NotPossibleHere: it cannot be reached, or its llmtop does not support it.
        """
        try:
            self._connection = client.Connection.open(socket, history=0)
        except client.ConnectionClosed as error:
            raise NotPossibleHere(f"the training cannot be reached: {error}; check that it still runs") from None
        self.id = os.urandom(4).hex()
        self.pid = self._connection.host_pid or self._connection.hello.pid
        try:
            if not self._connection.hello.stacks:
                raise NotPossibleHere(
                    "the llmtop in the training is older and cannot read stacks: restart the training with this "
                    "version of llmtop"
                )
            self._send(wire.SampleStacks(id=self.id, seconds=seconds, rate_hz=RATE_HZ))
        except BaseException:
            self.close()
            raise

    @property
    def has_same_numbers(self) -> bool:
        """Return True if the process counts threads as this one does: in a container of its own it does not."""
        return self.pid == self._connection.hello.pid

    def finish(self) -> None:
        """Request the samples so far."""
        self._send(wire.StopSampling(id=self.id))

    def await_answer(self) -> wire.SampledStacks:
        """Wait for the samples.

        Raises:
            NotPossibleHere: it refuses, has gone, or does not answer.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            try:
                messages = self._connection.receive(0.05)
            except (client.ConnectionClosed, LlmtopError) as error:
                raise NotPossibleHere(
                    f"the training sent no stacks: {error}; run: py-spy dump --pid PID"
                ) from None
            for message in messages:
                if isinstance(message, wire.SampledStacks) and message.id == self.id:
                    if message.refused:
                        raise NotPossibleHere(
                            f"the training sent no stacks: {message.refused}; run: py-spy dump --pid PID"
                        )
                    return message
        raise NotPossibleHere(
            f"the training sent no stacks for {ANSWER_SECONDS:.0f} s: a call that does not return keeps Python's "
            "lock; run: py-spy dump --pid PID"
        )

    def close(self) -> None:
        """Close the connection; this ends the sampling."""
        self._connection.close()

    def _send(self, message: wire.FromMonitor) -> None:
        try:
            self._connection.send(message)
        except (client.ConnectionClosed, LlmtopError) as error:
            raise NotPossibleHere(f"the training cannot be reached: {error}; check that it still runs") from None


def find_socket(pid: int) -> Path | None:
    """Return the socket of an attached training; None where it has none."""
    try:
        files = client.discover(socket_dir.runtime_dir())
    except NotPossibleHere:
        return None
    # In a container the process has named it by the number that it has there.
    numbers = {str(pid), *procfs.status(pid).get("NSpid", "").split()}
    for file in files:
        if str(file.pid) not in numbers:
            continue
        with (
            suppress(LlmtopError, client.ConnectionClosed),
            client.Connection.open(file.path, history=0) as connection,
        ):
            if (connection.host_pid or file.pid) == pid:
                return file.path
    return None


def dump(socket: Path) -> tuple[ThreadStack, ...]:
    """Return the present stacks of all its threads, as the training samples them.

    Raises:
        NotPossibleHere: as `StackRequest`.
    """
    asked = StackRequest(socket, 0.0)
    try:
        seen = asked.await_answer()
    finally:
        asked.close()
    return sort_threads([_thread(stack, asked) for stack in _read(seen, asked)])


def _thread(stack: Stack, asked: StackRequest) -> ThreadStack:
    number = stack.thread.os_id
    ours = bool(stack.frames) and "llmtop/instrument/" in stack.frames[0].file
    return ThreadStack(
        name=stack.thread.name or ("llmtop-server" if ours else "thread"),
        os_id=number or 0,
        active=bool(number) and asked.has_same_numbers and procfs.is_thread_running(asked.pid, number or 0),
        owns_gil=False,
        frames=stack.frames[::-1],
    )


def read_samples(asked: StackRequest, command: str) -> tuple[list[Stack], list[str]]:
    """Return the stacks that the training sampled itself, with notes on what is missing.

    Raises:
        NotPossibleHere: as `StackRequest.await_answer`.
    """
    seen = asked.await_answer()
    notes = []
    if seen.cut:
        notes.append(f"{seen.cut} samples of rare stacks are ignored: there are too many different stacks")
    return _read(seen, asked, command), notes


def _read(seen: wire.SampledStacks, asked: StackRequest, command: str = "") -> list[Stack]:
    frames = [Frame(frame.name, frame.file, frame.line or None) for frame in seen.frames]
    process = SampledProcess(asked.pid, command)
    threads = [_thread_id(thread, asked) for thread in seen.threads]
    try:
        return [
            Stack(process, threads[stack.thread], tuple(frames[place] for place in stack.frames), stack.looks)
            for stack in seen.stacks
        ]
    except IndexError:
        raise NotPossibleHere(
            "the stacks from the training are invalid: restart the training with this version of llmtop"
        ) from None


def _thread_id(thread: wire.SampledThread, asked: StackRequest) -> ThreadId:
    number = thread.os_id if asked.has_same_numbers else None
    name = thread.name or (system_name(asked.pid, number) if number else "")
    return ThreadId(asked.pid if name == MAIN and number is None else number, name)

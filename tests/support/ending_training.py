"""A training with PyTorch that steps when it is told to and ends in the way that it is told: run it as a program.

usage: ending_training.py [--plain] [--gpu] [--fake-cuda] [--cupti LIBRARY] [--deaf] [--crash-rank]

`--cupti` has what PyTorch does after a recording on a GPU (tests/cupti_stub); with `--deaf` no call of CUDA
ends it. `LLMTOP_TESTS_PATIENT=1` has it send its last messages however long its threads wait for a core.

Lines on stdin: ``step N``, ``evaluate``, and then the way to end: ``return``, ``raise``, ``exit``, ``_exit``,
``wait`` (for a signal), ``exec``, ``fork`` (a child that exits, then return), ``thread`` (the rest of the lines is
obeyed in a second thread), ``daemon`` (in one that still waits when the process ends).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import types
from typing import Any

import torch

from tests.support.light_optimizer import LightSGD

PLAIN = "--plain" in sys.argv
"""Import nothing of llmtop: `llmtop run` may have put its hooks on."""
DEVICE = "cuda" if "--gpu" in sys.argv else "cpu"


def main() -> None:
    """Obey."""
    if os.environ.get("LLMTOP_TESTS_PATIENT") and (not PLAIN or "llmtop.instrument" in sys.modules):
        from llmtop.instrument.serve import server

        server.LISTEN_WAIT_S = server.EXIT_WAIT_S = server.EXIT_PATIENCE_S = 60.0
    if "--fake-cuda" in sys.argv:
        _pretend_cuda()
    if "--cupti" in sys.argv:
        _pretend_cupti(ctypes.CDLL(sys.argv[sys.argv.index("--cupti") + 1]))
    # As in a terminal: what a shell starts in the background ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    train = Training()
    if "--crash-rank" in sys.argv:
        _crash_one_rank(train)
    train.steps(3)
    print("ready", flush=True)
    obey(train)


def obey(train: Training) -> None:
    """Do as the lines say until one ends it."""
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "step":
            train.steps(int(rest))
        elif word == "evaluate":
            with torch.no_grad():
                train.model(train.batch)
        elif word in ("thread", "daemon"):
            thread = threading.Thread(target=obey, args=(train,), daemon=word == "daemon")
            print("done", flush=True)
            if word == "thread":
                thread.start()
                thread.join(100)
                return
            thread.start()
            train.stepped.wait(100)
            return
        else:
            _end(word)
            return
        print("done", flush=True)


class Training:
    """A linear layer, an optimizer, and steps of some milliseconds."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(64, 64).to(DEVICE)
        self.batch = torch.randn(8, 64, device=DEVICE)
        self.optimizer = LightSGD(self.model.parameters(), lr=0.01)
        self.step: Any = contextlib.nullcontext
        self.stepped = threading.Event()
        self._total = 0
        if not PLAIN:
            import llmtop

            self.step = llmtop.step

    def steps(self, count: int) -> None:
        """So many."""
        for _ in range(count):
            with self.step():
                self.model(self.batch).sum().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                time.sleep(0.002)
            self._total += 1
            if self._total == 8:
                self.stepped.set()


def _end(way: str) -> None:
    if way == "raise":
        raise RuntimeError("the training fails")
    if way == "exit":
        sys.exit(7)
    if way == "_exit":
        os._exit(7)
    if way == "wait":
        print("done", flush=True)
        time.sleep(1000)
    if way == "exec":
        os.execv("/bin/sh", ["sh", "-c", "exit 9"])
    if way == "fork":
        child = os.fork()
        if child == 0:
            sys.exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert way in ("return", "fork"), way


def _crash_one_rank(train: Training) -> None:
    """Both ranks reduce for ever, until the second one raises when the file named in the environment is there."""
    import torch.distributed as dist

    dist.init_process_group("nccl" if DEVICE == "cuda" and torch.cuda.device_count() > 1 else "gloo")
    if DEVICE == "cuda" and torch.cuda.device_count() > 1:
        torch.cuda.set_device(dist.get_rank())
        train.batch = train.batch.to(dist.get_rank())
        train.model.to(dist.get_rank())
    one = torch.ones(1, device=train.batch.device if dist.get_backend() == "nccl" else "cpu")
    while True:
        train.steps(1)
        if dist.get_rank() == 1 and os.path.exists(os.environ["CRASH_WHEN"]):
            raise RuntimeError("this rank crashes")
        dist.all_reduce(one)


def _pretend_cuda() -> None:
    """Stand in for the allocator's history, which only CUDA's allocator keeps."""
    history = {"on": False}

    def record(enabled: Any = None, **_: object) -> None:
        history["on"] = enabled is not None

    torch.version.cuda = "0.0"
    torch.cuda.memory._record_memory_history = record  # type: ignore[assignment]
    torch.cuda.memory._snapshot = lambda: {"segments": []}  # type: ignore[assignment]
    fake = types.SimpleNamespace(**{**vars(torch.cuda), "is_initialized": lambda: True})
    import llmtop.instrument.control.recordings as recordings
    from llmtop.instrument.control.allocator_snapshot import Marks

    recordings.MemoryHistory.__init__ = lambda self, recorder, *_: self.__dict__.update(  # type: ignore[method-assign, misc]
        _torch=types.SimpleNamespace(cuda=fake), _snapshot=None, _recorder=recorder, _marks=Marks(), _own=True
    )


def _pretend_cupti(library: ctypes.CDLL) -> None:
    """Stand in for the end of a recording on a GPU, after which Python does not know of a Ctrl-C (torch 2.11)."""
    profiler: Any = torch.autograd.profiler
    disable = profiler._disable_profiler

    def disable_and_wait() -> Any:
        results = disable()
        ctypes.pythonapi.PyRun_SimpleString(b"")
        if os.environ.get("TEARDOWN_CUPTI") == "1":
            library.recording_has_ended()
        return results

    profiler._disable_profiler = torch.autograd._disable_profiler = disable_and_wait  # type: ignore[attr-defined]
    query = (lambda: True) if "--deaf" in sys.argv else library.call_cuda
    torch.version.cuda = "13.0"
    torch.cuda.is_initialized = lambda: True  # type: ignore[assignment]
    torch.cuda.current_stream = lambda *_: types.SimpleNamespace(query=query)  # type: ignore[assignment]
    torch.cuda.is_current_stream_capturing = lambda: True  # type: ignore[assignment]


if __name__ == "__main__":
    main()

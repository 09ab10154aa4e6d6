"""What a program does and leaves behind, as JSON: copied beside each program of `tests.foreign`.

It imports nothing of llmtop's, and nothing (torch included) that the program has not imported already.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import io
import json
import os
import pickle
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

OUT = "FOREIGN_OUT"
"""The folder for what is found."""
LIGHT = "FOREIGN_LIGHT"
"""Set where the optimizers of torch are to leave the compiler unloaded."""
WATCHED = "FOREIGN_WATCHED"
"""Set where a monitor comes at the end of each process, and is to be waited for."""
PATIENCE_S = 120.0
FEEDER_ENDS_S = 2.0
"""How long to wait for each thread that feeds a queue of multiprocessing's: where its queue is closed it ends by
itself, soon, and closes its pipe; a plain run on a busy machine was seen with it and the next one without."""
NOT_COMPARED = ("PYTHONPATH", "FOREIGN_", "LLMTOP_", "MASTER_PORT", "TORCHELASTIC_", "_TORCHINDUCTOR_")
"""Of the environment: what `llmtop run` sets, and what torch sets to addresses and random names."""
FILE_CLOSES_S = 3.0
"""How long to wait until a thread of the process that forked has closed a file that a forked child has, too."""
_importer = os.getpid()
"""The process that imported this; another one that has it was forked."""
_values: dict[str, str] = {}
_seeded = False


def seed(number: int = 0) -> None:
    """Seed every random generator of what has been imported, so that their state is compared at the end."""
    global _seeded
    _seeded = True
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)
        if os.environ.get(LIGHT) and "torch._dynamo" not in sys.modules:
            leave_compiler_unloaded(sys.modules["torch"].optim)


def leave_compiler_unloaded(optim: Any) -> None:
    """Take the import of torch._dynamo out of the steps of optimizers: it takes as long as that of torch itself.

    The functions stay the same ones; their code lacks the import and the breaks of a graph that is not compiled.
    """
    for made in vars(optim.Optimizer).values():
        if (own := getattr(made, "__wrapped__", None)) is not None:
            own.__dynamo_disable = own  # what a first call looks for, and else has the compiler make
    for kind in vars(optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        code = getattr(step, "__code__", None)
        if code is not None and code.co_name == "_use_grad" and code.co_freevars == ("func",):
            place = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno}
            step.__code__ = _with_gradients_off(None).__code__.replace(co_name="_use_grad", **place)


def _with_gradients_off(func: Any) -> Any:
    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()  # type: ignore[name-defined]  # noqa: F821  of torch.optim.optimizer
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])  # type: ignore[name-defined]  # noqa: F821
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)  # type: ignore[name-defined]  # noqa: F821

    return _use_grad


def add(name: str, value: Any) -> None:
    """Have a value compared; the same name may come again."""
    while name in _values:
        name += "'"
    _values[name] = told(value)


def model(net: Any, *optimizers: Any, name: str = "model") -> None:
    """Have a module compared: keys, weights, buffers, gradients; and the state of its optimizers."""
    state = net.state_dict()
    add(f"{name}: keys of state_dict", list(state))
    for key, value in state.items():
        add(f"{name}: {key}", value)
    for key, parameter in net.named_parameters():
        add(f"{name}: gradient of {key}", parameter.grad)
    add(f"{name}: modes", [module.training for module in net.modules()])
    for optimizer in optimizers:
        add(f"{name}: optimizer", optimizer.state_dict())


def pickled(name: str, *things: Any) -> None:
    """Have the pickles of these things compared: all but the addresses that torch writes into those of tensors."""
    for thing in things:
        pickle.dumps(thing)
        written = io.BytesIO()
        _Pickler(written).dump(thing)
        add(f"pickle of {name}", written.getvalue())


class _Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> str | None:
        torch = sys.modules.get("torch")
        return told(thing) if torch and isinstance(thing, torch.Tensor) else None


def end(name: str = "main", *, children: bool = True) -> None:
    """Write all of it down, with what this process looks like now; then wait for a monitor, if one will come.

    Args:
        name: of this process, where there are several.
        children: whether to look at what a child inherits; not where a child cannot be started.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(FEEDER_ENDS_S)
    found = {"values": _values, "process": _process(), "descriptors": opened()}
    if children:
        found["inherited"] = _inherited()
    path = os.path.join(os.environ[OUT], name)
    with open(f"{path}.new", "w") as file:
        json.dump(found, file)
    os.rename(f"{path}.new", f"{path}.json")
    if os.environ.get(WATCHED):
        _wait_for_monitor(path)


def _wait_for_monitor(path: str) -> None:
    with open(f"{path}.pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.pid", f"{path}.here")
    for _ in range(int(PATIENCE_S / 0.01)):
        if os.path.exists(f"{path}.go"):
            return
        time.sleep(0.01)
    raise SystemExit("nobody came to look")


# --- values ----------------------------------------------------------------------------------------------------


def told(value: Any) -> str:
    """A value in words: short ones as they are, and of all a hash of every bit."""
    text = repr(value) if isinstance(value, (str, int, float, bool, list, tuple, type(None))) else ""
    return f"{type(value).__name__} {hash_of(value)} {text[:400]}".rstrip()


def hash_of(value: Any) -> str:
    """Of every bit of it."""
    hashed = hashlib.sha256()
    for part in _parts(value):
        hashed.update(struct.pack("<q", len(part)) + part)
    return hashed.hexdigest()[:16]


def _parts(value: Any) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if isinstance(value, float):
        yield struct.pack("<d", value)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield repr(key).encode()
            yield from _parts(held)
    elif isinstance(value, (list, tuple)):
        yield struct.pack("<q", len(value))
        for held in value:
            yield from _parts(held)
    elif "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        yield from _tensor(value)
    elif "numpy" in sys.modules and isinstance(
        value, (sys.modules["numpy"].ndarray, sys.modules["numpy"].generic)
    ):
        yield str(value.dtype).encode() + str(value.shape).encode()
        yield value.tobytes()
    else:
        yield repr(value).encode()


def _tensor(tensor: Any) -> Iterator[bytes]:
    import torch

    plain = tensor.detach()
    if hasattr(plain, "full_tensor"):  # a shard of it, of FSDP
        plain = plain.to_local()
    yield f"{plain.dtype} {tuple(plain.shape)} {plain.layout} {tensor.requires_grad} {tensor.is_leaf}".encode()
    if plain.layout is not torch.strided:
        plain = plain.coalesce()
        yield from _tensor(plain.indices())
        plain = plain.values()
    if plain.is_quantized:
        yield repr(plain.qscheme()).encode()
        plain = plain.int_repr()
    if plain.device.type != "meta":
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
        yield bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""


# --- the process -----------------------------------------------------------------------------------------------


def _process() -> dict[str, Any]:
    """Everything of a process that a library could have changed, by name."""
    found: dict[str, Any] = {
        "threads": sorted(f"{thread.name} daemon={thread.daemon}" for thread in threading.enumerate()),
        "signal mask": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "signal handlers": {int(n): _name(signal.getsignal(n)) for n in sorted(signal.valid_signals())},
        "timers": [signal.getitimer(which)[1] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)],
        "random": hash_of(random.getstate()) if _seeded else None,
        "sys.path": sys.path[:],
        "sys.argv": sys.argv[:],
        "sys.meta_path": [_name(finder) for finder in sys.meta_path if "llmtop" not in _module(finder)],
        "sys.path_hooks": [_name(hook) for hook in sys.path_hooks],
        "hooks of sys": [_name(getattr(sys, hook)) for hook in ("excepthook", "displayhook", "unraisablehook")],
        "threading.excepthook": _name(threading.excepthook),
        "sys.gettrace, getprofile": [_name(sys.gettrace()), _name(sys.getprofile())],
        "streams": [type(stream).__name__ for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "limits of the interpreter": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "flags": repr(sys.flags),
        "warning filters": [repr(entry) for entry in warnings.filters],
        "garbage collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_debug()],
        "folder": os.getcwd(),
        "niceness": os.nice(0),
        "processors": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_NOFILE", "RLIMIT_CORE")},
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if not name.startswith(NOT_COMPARED)
        },
    }
    os.umask(umask := os.umask(0o077))
    found["umask"] = umask
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(wakeup := signal.set_wakeup_fd(-1))
        found["wake-up descriptor"] = wakeup
    if "numpy" in sys.modules and _seeded:
        found["numpy.random"] = hash_of(sys.modules["numpy"].random.get_state())
    if "torch" in sys.modules:
        found["torch"] = _torch()
    return found


def _torch() -> dict[str, Any]:
    import torch
    from torch.nn.modules import module

    found = {
        "random": hash_of(torch.get_rng_state()) if _seeded else None,
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "gradients": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "modes": [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()],
        "hooks on all modules": {
            name: len(hooks)
            for name, hooks in sorted(vars(module).items())
            if name.startswith("_global_") and isinstance(hooks, dict)
        },
    }
    if "torch._dynamo.utils" in sys.modules:
        counters = sys.modules["torch._dynamo.utils"].counters
        found["graphs compiled"] = dict(counters["stats"])
        found["graph breaks"] = {reason.split("\n")[0]: n for reason, n in counters["graph_break"].items()}
    return found


def opened() -> list[tuple[str, bool]]:
    """What each open descriptor is that stays, and whether exec closes it; a thread may read a file just now."""
    first = _open_descriptors()
    time.sleep(0.1)
    second = _open_descriptors()
    limit = time.monotonic() + FILE_CLOSES_S
    return sorted(
        known
        for number, known in second.items()
        if first.get(number) == known and not _was_in_use_at_fork(number, known, limit)
    )


def _was_in_use_at_fork(number: str, known: tuple[str, bool], limit: float) -> bool:
    """Return True for a file that a thread of the process that forked has closed since, or closes until `limit`.

    A forked child has no such thread, and keeps the file; exec closes it. What is open for good is so in both.
    """
    kind, closes = known
    if os.getpid() == _importer or not closes or kind[0] != "/":
        return False
    while time.monotonic() < limit:
        try:
            if os.readlink(f"/proc/{_importer}/fd/{number}") != kind:
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def _open_descriptors() -> dict[str, tuple[str, bool]]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the list is read with
            kind = os.readlink(f"/proc/self/fd/{entry}")
            closes = fcntl.fcntl(int(entry), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            found[entry] = (kind.partition(":[")[0] if kind[0] != "/" else kind, bool(closes))
    return found


def _inherited() -> list[str]:
    """What a child has open that is given all it can be."""
    listing = subprocess.run(
        ["/bin/ls", "-l", "/proc/self/fd"],
        close_fds=False,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    kinds = [line.partition(" -> ")[2] for line in listing.stdout.splitlines() if " -> " in line]
    return sorted(kind.partition(":[")[0] for kind in kinds if not kind.endswith("/fd"))


def _module(thing: object) -> str:
    return str(getattr(thing, "__module__", ""))


def _name(thing: object) -> str:
    if isinstance(thing, signal.Handlers) or thing is None:
        return str(thing)
    return f"{_module(thing)}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"

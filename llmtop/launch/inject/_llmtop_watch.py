"""Waits for `import torch`, then puts llmtop's hooks on. Until then it costs one comparison an import.

Only modules that the interpreter itself has loaded already are imported here: this runs at the start of every
Python below `llmtop run`, pip and DataLoader workers included.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing for it would take 7 ms of every Python's start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OWN_PACKAGES = ("llmtop", "msgspec", "nvtx")
"""Packages that the training's process needs; taken from llmtop's own environment where the training's lacks
them."""
PATH = "LLMTOP_RUN_PATH"
"""Set by `llmtop run`: the folders in which its own environment has `OWN_PACKAGES`."""
ABI = "LLMTOP_RUN_ABI"
"""Set by `llmtop run`: which Python the compiled ones among them are for, as sys.implementation.cache_tag."""
SAID = "LLMTOP_RUN_SAID"
"""Set here for the children of a process that has printed why it is not instrumented: once is enough."""
PID = "LLMTOP_RUN_PID"
"""Set by `llmtop run`: its pid, which its command has then."""
TOLD = "LLMTOP_RUN_TOLD"
"""Set by `llmtop run`: path of a file; the process that creates it prints the run's one line."""
QUIET = "LLMTOP_QUIET"
"""Set by the user, or by ``llmtop run --quiet``: nothing is printed."""


class OwnPackages:
    """Finds `OWN_PACKAGES`, and nothing else, in llmtop's environment, after every other finder has failed."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find llmtop's own packages where this run has them, and no other (`MetaPathFinder.find_spec`)."""
        if name not in OWN_PACKAGES:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, self._path, target)


class TorchWatcher:
    """Lets every import pass; once torch itself has been executed, calls `then` and is gone."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._asking_others = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find torch as others do (`MetaPathFinder.find_spec`). Looking without importing it changes nothing."""
        if name != "torch" or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = _find_with_others(name, path, target)
        finally:
            self._asking_others = False
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module  # the loader that torch.__spec__ keeps is the one that Python made
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self._then()

        if hasattr(loader, "__dict__"):  # Python's own have one; what another loader brings stays as it is
            loader.exec_module = execute_and_call


def _find_with_others(name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None


def _what_stderr_is() -> tuple[int, int] | None:
    try:
        found = os.fstat(2)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_stderr = _what_stderr_is()
"""Standard error as this process received it: llmtop does not write to a file that the script has put in its
place."""


def _write(sentence: str) -> None:
    """Write a line where this process was started, whatever the script has made of sys.stderr since."""
    stream = sys.__stderr__
    if stream is None or _stderr is None or _what_stderr_is() != _stderr or os.environ.get(QUIET):
        return
    if not sentence.isprintable():  # the name of a script or a folder; llmtop.format may not be importable here
        sentence = "".join(character if character.isprintable() else "·" for character in sentence)
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
    try:
        stream.write(
            ("\n" if len(bars) else "") + "llmtop: " + sentence + "\n"
        )  # a bar leaves the cursor behind it
        stream.flush()
    except (OSError, ValueError):
        pass  # closed, full, a terminal that has gone


_spoken = False
"""True if this process has had something to say, be it first or not."""


def claim() -> bool:
    """Return True if this process is the first of its run with something to say; all others keep still then."""
    global _spoken
    _spoken = True
    try:
        os.close(os.open(os.environ.get(TOLD, ""), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


def attached() -> None:
    """Print that this run is watched, once for all its processes; called when its socket listens."""
    if claim():
        place = os.path.dirname(os.environ[TOLD]) if os.environ.get("LLMTOP_DIR") else ""
        _write("attached; watch with: " + (f"LLMTOP_DIR={place} llmtop" if place else "llmtop"))


def kept(path: str) -> None:
    """Print the place of the snapshot of a process that an out-of-memory error ended."""
    _write("out of memory; to see the allocations, run: llmtop report " + path)


def _print_once(sentence: str) -> None:
    if not os.environ.get(SAID):
        os.environ[SAID] = "1"
        claim()
        _write(sentence)


def _at_exit() -> None:
    """Print why nothing of this run could be attached, where no process of it has printed a line."""
    path = os.environ.get(TOLD)
    if not path or os.environ.get(PID) != str(os.getpid()):
        return
    error = getattr(sys, "last_value", None)
    failed = error is not None  # an exception ended it, and has been printed
    if type(error).__name__ == "ChildFailedError":
        _keep_exits(error)
    if os.path.exists(path):
        try:  # contextlib is not loaded in every Python
            os.unlink(path)
        except OSError:
            return  # a directory that is read-only by now
    elif not _spoken and not failed:
        words = getattr(sys, "argv", None) or [""]
        name = "the command" if words[0] in ("", "-c") else os.path.basename(words[0])
        _write(f"not attached: {name} ended without {_what_was_missing()}")


def _keep_exits(error: Any) -> None:
    """Keep what torchrun knows of its ranks: one that a signal ended could not write its end."""
    try:
        from llmtop.instrument.run_log.torchrun_exits import keep_exits

        keep_exits(error)
    except Exception:  # noqa: BLE001  # the run is over; torchrun ends as it would have
        pass


def _what_was_missing() -> str:
    if "torch" not in sys.modules:
        jax = "; llmtop.integrations.jax.step() tells the steps of JAX" if "jax" in sys.modules else ""
        return "having imported torch" + jax
    return (
        "a backward pass or an optimizer's step of torch's, generate() or a second of forward passes; "
        "llmtop.step() tells the steps of any loop"
    )


def _make_importable() -> bool:
    """Return True if llmtop can be imported here, if need be from the environment that `llmtop run` belongs to."""
    from importlib.util import find_spec

    missing = [name for name in OWN_PACKAGES if find_spec(name) is None]
    if not missing:
        return True
    if sys.implementation.cache_tag != os.environ.get(ABI) and missing != ["llmtop"]:
        needed = " ".join(name for name in missing if name != "llmtop")  # llmtop itself has no compiled code
        _print_once(
            f"not instrumented: {sys.executable} lacks {', '.join(missing)}, and those of llmtop are for another "
            f"Python ({os.environ.get(ABI)}); run: {sys.executable} -m pip install {needed}"
        )
        return False
    sys.meta_path.append(OwnPackages(os.environ.get(PATH, "").split(os.pathsep)))
    return True


def _instrument() -> None:
    try:
        if _make_importable():
            from llmtop.instrument import auto

            auto.install()
    except Exception as error:  # noqa: BLE001
        # Whatever is wrong with llmtop or with a torch it does not know, the training must run as without it.
        _print_once(f"not instrumented: {type(error).__name__}: {error}")


def watch() -> None:
    """Wait for `import torch` in this process; a .pth file of its environment may have been faster."""
    if os.environ.get(PID) == str(os.getpid()):
        import atexit

        atexit.register(_at_exit)
    if "torch" in sys.modules:
        _instrument()
    else:
        sys.meta_path.insert(0, TorchWatcher(_instrument))

# Every Python that `llmtop run` starts imports this first, whatever its version and the program: the syntax is one
# that Python 2.7 reads too, and nothing is imported that the interpreter has not imported yet.
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
if sys.version_info >= (3, 10):  # noqa: UP036  # any Python may stand here, llmtop's own is not meant
    import _llmtop_watch  # type: ignore[import-not-found]  # found by path, beside this file

    _llmtop_watch.watch()
elif os.environ.get("LLMTOP_RUN_PID") == str(os.getpid()) and not os.environ.get("LLMTOP_QUIET"):
    _version = ".".join([str(_part) for _part in sys.version_info[:2]])
    try:  # noqa: SIM105  # Python 2.7 has no suppress()
        sys.stderr.write("llmtop: not attached: this is Python " + _version + ", and 3.10 is needed\n")
    except Exception:  # noqa: BLE001  # closed, or full; each Python raises another one
        pass

# From here on as if this folder were not there: the user's own sitecustomize, if there is one, comes next.
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # for what it does
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _this

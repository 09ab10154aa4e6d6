"""The user's own: a line on stdout, a filter, a setting, and an exit function."""

import atexit
import sys
import warnings

if sys.orig_argv[1:] == ["main.py"]:  # and not in llmtop itself, which is a Python as well
    print("sitecustomize of the user's", __name__, flush=True)
    warnings.filterwarnings("ignore", message="of no use")
    sys.setrecursionlimit(1234)
    atexit.register(print, "said at exit")

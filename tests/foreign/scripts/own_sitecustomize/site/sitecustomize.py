"""The user's own: a line on stdout, a filter, a setting, and an exit function."""

import atexit
import sys
import warnings

print("sitecustomize of the user's", __name__, flush=True)
warnings.filterwarnings("ignore", message="of no use")
sys.setrecursionlimit(1234)
atexit.register(print, "said at exit")

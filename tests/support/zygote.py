"""One process below `llmtop run` that has imported torch, and forks for each training that it is told of.

Importing torch takes seconds, a small training some milliseconds. Its arguments are further modules to import.
Each line on stdin names a program, each line on stdout says with which code it has ended, and its name; what it
prints is in files beside it.
"""

import atexit
import importlib
import os
import runpy
import sys
from pathlib import Path

ended: list[str] = []
"""What has come to its end without an error."""


def leave() -> None:
    """End here, after all else that is done at the end: to take torch apart would cost a second each time."""
    if ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


atexit.register(leave)  # first of all, to be called last

import torch  # noqa: E402

# The first optimizer of a process imports the compiler, which takes longer than torch itself.
torch.optim.SGD([torch.zeros(1)])
for name in sys.argv[1:]:
    importlib.import_module(name)


def run(program: str) -> None:
    """In the child: be that program, as if Python had been started with it."""
    for fd, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(program + suffix, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")
    ended.append(program)


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(line.rstrip("\n"))
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), line.rstrip("\n"), flush=True)
else:
    ended.append("this process itself")

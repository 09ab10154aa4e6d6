"""Two ranks over gloo in forks of a process that has imported torch; below torchrun three would import it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.steps import Zygote

_LAUNCHER = """
import os, sys, signal, time, traceback
os.environ.update(ENVIRONMENT, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
ranks = []
while len(ranks) < 2:
    rank, child = len(ranks), os.fork()
    if child == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv[1:] = ARGUMENTS
        group = {"backend": "gloo", "init_method": "file://" + __file__ + ".store", "rank": rank, "world_size": 2}
        try:
            exec(compile(SOURCE, __file__, "exec"), {"__name__": "__main__", "__file__": __file__, "GROUP": group})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    ranks.append(child)
codes = {}
while len(codes) < 2:
    if os.path.exists(__file__ + ".stop"):
        for child in set(ranks) - set(codes):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        break
    child, status = os.waitpid(-1, os.WNOHANG)
    if child:
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child]:
            open(__file__ + ".stop", "w").close()  # as torchrun ends the others
    else:
        time.sleep(0.02)
assert not any(codes.values()), codes
"""


def _launcher(source: str, arguments: Sequence[str], variables: dict[str, str]) -> str:
    return f"SOURCE, ARGUMENTS, ENVIRONMENT = {source!r}, {[*arguments]!r}, {variables!r}\n{_LAUNCHER}"


def run_ranks(zygote: Zygote, path: Path, source: str, *arguments: str, **variables: str) -> str:
    """What both ranks wrote to stdout, once they have ended well.

    Args:
        zygote: whose forks they are.
        path: where to write the program.
        source: what each rank runs; it calls `torch.distributed.init_process_group(**GROUP)`.
        arguments: in its sys.argv.
        variables: in its environment.
    """
    path.with_name(f"{path.name}.store").unlink(missing_ok=True)
    zygote.start(path, _launcher(source, arguments, variables))
    return zygote.end(path)[0]


@contextmanager
def running_ranks(zygote: Zygote, path: Path, source: str, *arguments: str, **variables: str) -> Iterator[None]:
    """As `run_ranks`, of ranks that train until the ``with`` is left."""
    zygote.start(path, _launcher(source, arguments, variables))
    try:
        yield
    finally:
        path.with_name(f"{path.name}.stop").touch()
        zygote.end(path)

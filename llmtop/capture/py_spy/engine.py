"""py-spy: the Python stacks of a process that knows nothing of it, read from outside and without pausing it.

Where py-spy cannot read a process (its Python is newer, or the system forbids it), an attached training sends its
own. A monitor loads this module to learn what it refuses; what reads stacks is loaded at need.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llmtop.capture.base.engine import SPEEDSCOPE, Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.py_spy import program, ptrace_permission
from llmtop.errors import NotPossibleHere
from llmtop.naming import file_names
from llmtop.nsys_cli.tool import Option
from llmtop.system import procfs

if TYPE_CHECKING:
    from llmtop.capture.py_spy.stacks import ThreadStack


def dump(pid: int) -> tuple[ThreadStack, ...]:
    """Return the stacks of all Python threads now, those of workers too; pauses nothing.

    Raises:
        NotPossibleHere: not permitted, no Python process, or gone; and it is not attached to llmtop.
    """
    from llmtop.capture.py_spy import inside, outside

    try:
        return outside.dump(pid)
    except NotPossibleHere:
        socket = inside.find_socket(pid)
        if socket is None:
            raise
        return inside.dump(socket)


def _is_python(target: Target) -> bool:
    if target.hello is not None:
        return True
    if procfs.runs_python(target.pid):
        return True
    try:
        return any("libpython" in name for name in procfs.mapped_files(target.pid))
    except OSError:
        return True  # not permitted; the check of permissions reports it


class PySpyEngine(Engine):
    """Samples Python stacks; a tree, a folded and a speedscope file a training, with its workers."""

    name = "py-spy"
    report_kind = "stacks"
    description = "Python stacks only, read from outside: where the CPU's time goes"
    options = (
        Option(
            "native",
            "frames of C and C++ libraries below the Python ones",
            f"stops the training at each of {program.NATIVE_RATE_HZ} samples a second, for 10 ms and more",
            False,
        ),
    )
    open_with = SPEEDSCOPE

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        if target.can_sample_itself:
            return None
        try:
            program.find_py_spy()
        except NotPossibleHere as missing:
            because, _, command = str(missing).partition(": ")
            return Refusal(because, command)
        if not _is_python(target):
            return Refusal("this is not a Python process")
        return ptrace_permission.refusal(target.pid)

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        return [_program_check(), ptrace_permission.permission_check()]

    def viewer_file(self, trace: Path) -> Path:
        """See `Engine.viewer_file`."""
        return trace.with_suffix(file_names.SPEEDSCOPE)

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        from llmtop.capture.py_spy import window

        return window.record(job)


def _program_check() -> Check:
    try:
        return Check(name="py-spy", ok=True, says=str(program.find_py_spy()))
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return Check(name="py-spy", ok=False, says=because, command=command)

"""`llmtop run`: start a training, attached, without changing it."""

from __future__ import annotations

import contextlib
import os
import shutil

import click

from llmtop.cli.output import print_text
from llmtop.errors import UnusableInput
from llmtop.naming import variable_names


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Start a training, attached, without changing it.",
)
@click.option(
    "--auto/--no-auto",
    default=True,
    help="Time the steps and phases of a PyTorch training by hooks (default), or not.",
)
@click.option("--nsys", is_flag=True, help="Start the command under nsys, so that nsys captures are available.")
@click.option(
    "--with",
    "extras",
    multiple=True,
    metavar="OPTION",
    help="Additional data for nsys to record besides CUDA and NVTX; repeatable. An unknown name lists all.",
)
@click.option(
    "--kineto/--no-kineto",
    default=None,
    help="Run the Kineto daemon beside the command, to capture PyTorch processes that are not attached (default: "
    "on with --no-auto, else off).",
)
@click.option(
    "--memory-history",
    is_flag=True,
    help="Record the stack of every CUDA allocation from the start, for memory captures and out-of-memory "
    "snapshots. Adds some microseconds per allocation.",
)
@click.option(
    "--run-log/--no-run-log",
    default=True,
    help="Keep the run on disk, for llmtop runs (docs/runs.md).",
)
@click.option(
    "--summary",
    default="auto",
    metavar="short|long|off|FILE",
    help="Print a summary on stderr when the training ends in order, or write it to FILE.  [default: short, if "
    "stderr is a terminal]",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no message on stderr about attaching.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
def run(
    *,
    auto: bool,
    nsys: bool,
    extras: tuple[str, ...],
    kineto: bool | None,
    memory_history: bool,
    run_log: bool,
    summary: str,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Start COMMAND with llmtop attached, so that its steps are shown and it can be captured.

    COMMAND replaces this process and keeps its terminal, streams, signals, job control and exit code. Every
    Python process below it that imports torch publishes data loading, host-to-device copies, forward, backward,
    optimizer and whole steps. Python started with -I, -E or -S publishes nothing. A script that
    calls llmtop.step() publishes the steps that it marks itself.
    One line on stderr reports that llmtop has attached, or at the end why not. With -q, or LLMTOP_QUIET=1, there
    is no line.

    --nsys starts COMMAND in an nsys session. On H200, a step took 0 to 7 % longer without a capture. During a
    capture it took 1 to 3 % longer, and up to 39 % with very small kernels. nsys stays in the process: on H100,
    the steps of a launch-bound training took 30 % longer after the first capture.
    """
    if not command:
        raise UnusableInput("No command given. Add the training command: llmtop run -- python train.py")
    if extras and not nsys:
        raise UnusableInput("--with needs --nsys: add --nsys")
    if memory_history and not auto:
        raise UnusableInput("--memory-history needs the hooks that --no-auto disables: remove --no-auto")
    from llmtop.launch.environment import instrumented_environment
    from llmtop.launch.exec_in_place import exec_in_place, not_started, occupy_closed_streams

    # nsys opens files in the training before Python starts: with a closed stdout, print() would write to one.
    occupy_closed_streams(for_command=nsys)
    environment = instrumented_environment(os.environ) if auto else dict(os.environ)
    program = shutil.which(command[0], os.F_OK, environment.get("PATH"))
    if program is None:
        raise not_started(command[0], FileNotFoundError())  # before anything is started for it
    if nsys:
        environment.update(_nsys_session(environment, extras))
    if kineto or (kineto is None and not auto and not nsys):
        # Not beside auto, where torch.profiler does it: every process of the training asks the fabric once a
        # second, and a compiled optimizer gets one more graph break. Not beside nsys: CUPTI has one listener.
        from llmtop.capture.kineto.spawn import start_host

        start_host(environment, os.getpid())
    if not run_log:
        environment[variable_names.RUN_LOG] = "0"
    summary = "off" if quiet and summary == "auto" else summary
    if summary != "off" and (auto or summary != "auto"):
        environment[variable_names.RUN_SUMMARY] = _summary_target(summary)
    else:
        environment.pop(variable_names.RUN_SUMMARY, None)  # of a llmtop run around this one
    if memory_history:
        environment[variable_names.MEMORY_HISTORY] = "1"
    if auto:
        environment = _report_obstacles(environment, command, program, quiet=quiet)
    exec_in_place(command, environment)


def _summary_target(summary: str) -> str:
    """Return a file as an absolute path, and words as they are."""
    return summary if summary in ("auto", "short", "long", "off") else os.path.abspath(os.path.expanduser(summary))


def _report_obstacles(
    environment: dict[str, str], command: tuple[str, ...], program: str, *, quiet: bool
) -> dict[str, str]:
    """Report obstacles that are already known; else let the command's own processes report how it went."""
    from llmtop.launch.environment import announcing_environment, quiet_environment
    from llmtop.launch.inject._llmtop_watch import QUIET
    from llmtop.launch.uninstrumentable import (
        OFF_REASON,
        flag_message,
        unattachable_reason,
        unsupported_python_flag,
    )

    if quiet or environment.get(QUIET):
        return quiet_environment(environment)
    if environment.get(variable_names.OFF):
        why: str | None = OFF_REASON
    elif option := unsupported_python_flag(command):
        why = flag_message(option)
    else:
        why = unattachable_reason(command, program) if os.access(program, os.X_OK) else None
        environment = announcing_environment(environment)
    if why is not None:
        _print(f"not attached: {why}")
    return environment


def _print(sentence: str) -> None:
    """Print a line on stderr; where that is closed or full, the command is started all the same."""
    with contextlib.suppress(OSError):
        print_text(f"llmtop: {sentence}", err=True)


def _nsys_session(environment: dict[str, str], extras: tuple[str, ...]) -> dict[str, str]:
    from llmtop.launch import nsys_session, run_lifetime
    from llmtop.nsys_cli import tool as nsys

    around = environment.get(nsys.SESSION_VARIABLE)
    if around is not None:
        _print(f"already in nsys session {around}; it is used")
        return {}
    found = nsys.find_nsys(environment)
    options = [nsys.find_option(name) for name in extras]
    carried = {**environment, run_lifetime.MARKER: run_lifetime.new_marker()}
    session, handed = nsys_session.start(
        lambda name: nsys.launch_command(name, extras, found), nsys.new_session_name, carried
    )
    _print(
        f"nsys {found.version_text}, session {session}: a step takes 0 to 7 % longer, 1 to 39 % (most "
        "with tiny kernels) during a capture and, where the host sets the pace, up to 30 % from the first on "
        "until the training ends. Capture with: llmtop capture"
    )
    if found.needs_pause:
        _print(f"each capture on a GPU {nsys.PAUSE_COST}: this nsys harms some that run on")
    for option in options:
        _print(f"--with {option.name} ({option.summary}): {option.cost}")
    return {**carried, **handed}

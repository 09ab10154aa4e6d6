"""What a training in a child process has recorded, as the process itself finds it in its ring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import environment

_ATTACHED = re.compile(r"llmtop: attached; watch with: .*\n")
_MARK = "recorded: "


@dataclass(frozen=True)
class Recorded:
    """One finished step."""

    index: int
    seconds: float
    tokens: float | None
    samples: float | None
    phases: dict[str, tuple[int, float]]
    """path -> (how often, seconds)"""
    tokens_in: float | None = None
    interval: float | None = None
    """Seconds from the start of the step before."""

    def count(self, path: str) -> int:
        """How often that phase was entered."""
        return self.phases.get(path, (0, 0.0))[0]

    def time(self, path: str) -> float:
        """Seconds in that phase."""
        return self.phases.get(path, (0, 0.0))[1]


def show() -> None:
    """In the child: print all steps and what was left out, on a line that `read` finds."""
    from llmtop.instrument.record import recorder
    from tests.support.recorded import steps_of

    r = recorder.get()
    steps: list[dict[str, Any]] = []
    if r.hooks.refresh is not None:
        r.hooks.refresh(True)  # as the server thread does while a monitor is there
    for step in steps_of(r):
        phases = {phase.name: (phase.count, phase.host_ns / 1e9) for phase in step.phases}
        numbers = {"seconds": step.host_ns / 1e9, "tokens": step.tokens, "samples": step.samples}
        numbers["tokens_in"] = step.tokens_in
        numbers["interval"] = None if step.interval_ns is None else step.interval_ns / 1e9
        steps.append({"index": step.index, **numbers, "phases": phases})
    facts = {
        "auto": r.facts.auto,
        "total_steps": r.facts.steps_in_all(),
        "metrics": r.metrics,
        "logged": r.logged.read(0)[1],
        "flops_per_token": r.facts.seen_flops_per_token,
        "flops_unknown": r.facts.flops_unknown,
        "dtype": r.facts.seen_dtype,
        "attached": r.attached,
        "kind": r.facts.kind,
        "kind_since": r.facts.kind_since,
        "inference": r.facts.inference,
    }
    print(_MARK + json.dumps({"steps": steps, "left_out": r.left_out, "blind": r.blind, **facts}), flush=True)


def read(output: str) -> dict[str, Any]:
    """What `show` printed; with several processes, the first."""
    line = next(line for line in output.splitlines() if line.startswith(_MARK))
    found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
    found["steps"] = [
        Recorded(**{**step, "phases": {path: tuple(pair) for path, pair in step["phases"].items()}})
        for step in found["steps"]
    ]
    return found


def train(path: Path, source: str, *options: str, **variables: str) -> dict[str, Any]:
    """Run a program under `llmtop run` and return what it recorded; it ends with `show()`.

    Args:
        path: where to write the program.
        source: the program.
        options: of `llmtop run`.
        variables: for its environment.

    Raises:
        AssertionError: it failed; its stderr is in the message.
    """
    path.write_text(source + "\nfrom tests.support.steps import show; show()\n")
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "run", *options, "--", sys.executable, str(path)],
        env=environment(OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = _ATTACHED.sub("", done.stderr)
    assert "llmtop:" not in said, done.stderr
    return {**read(done.stdout), "stdout": done.stdout, "stderr": said}


class Zygote:
    """Runs programs below one `llmtop run`, in forks of a process that has imported torch. See zygote.py."""

    def __init__(self, *imports: str, bare: bool = False, **variables: str) -> None:
        """Start it.

        Args:
            imports: modules that it imports beside torch.
            bare: without `llmtop run`, to compare with.
            variables: for its environment.
        """
        below = [] if bare else [sys.executable, "-m", "llmtop", "run", "--"]
        self._process = subprocess.Popen(
            [*below, sys.executable, "-m", "tests.support.zygote", *imports],
            env=environment(OMP_NUM_THREADS="1", **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, path: Path, source: str) -> None:
        """Start a program, which `end` waits for."""
        path.write_text(source)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def end(self, path: Path) -> tuple[str, str]:
        """What the program that was started last wrote to stdout and stderr, once it has ended well."""
        code, output, errors = self.outcome(path)
        assert code == 0, errors
        assert "llmtop:" not in errors, errors
        return output, errors

    def outcome(self, path: Path) -> tuple[int, str, str]:
        """With which code the program that was started last has ended, and what it wrote to stdout and stderr."""
        assert self._process.stdout is not None
        # A test that was given up may have left an answer that nobody has read.
        answers = (line.split(maxsplit=1) for line in self._process.stdout)
        code = next(code for code, program in answers if program == f"{path}\n")
        output, errors = (Path(f"{path}{suffix}").read_text() for suffix in (".out", ".err"))
        return int(code), output, errors

    def train(self, path: Path, source: str) -> dict[str, Any]:
        """As the function `train`; the output is under "stdout" and "stderr"."""
        self.start(path, source + "\nfrom tests.support.steps import show; show()\n")
        output, errors = self.end(path)
        return {**read(output), "stdout": output, "stderr": errors}

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=240)

"""What differs between two runs of a program, and between what a monitor heard and what is right: in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from llmtop.protocol.wire import StepDone
from tests.foreign.program import Program
from tests.foreign.runs import Heard, Outcome

OURS = ({"socket", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode"}, True)
"""What llmtop may have open, closed on exec."""
_FRAMES = re.compile(r'  File "[^"\n]*/llmtop/instrument/[^"\n]*", line \d+, in .*\n(    .*\n)*')


ATTACHED = re.compile(r"llmtop: attached; watch with: (LLMTOP_DIR=\S+ )?llmtop\n")
_IN_A_BAR = re.compile(r"(\r[^\n]*)\n(llmtop: attached; watch with: )")
NOT_ATTACHED = "llmtop: not attached: "


def differences(
    plain: Outcome,
    other: Outcome,
    says: str | None = None,
    passing: str = "",
    *,
    below_run: bool = False,
    line: str | None = None,
) -> list[str]:
    """All that is not as in the plain run.

    Args:
        plain: without llmtop.
        other: with it.
        says: words of a line that llmtop writes to stderr; None: it writes none.
        passing: names of threads that come and go in their own time, as fnmatch patterns.
        below_run: whether `llmtop run` has started it, which says one line.
        line: "attached" or "none" where that line is not to be told from what a monitor hears: of a process that
            has left its streams, say.
    """
    stderr, said = _split(other.stderr) if says or below_run else (other.stderr, "")
    stdout, stderr = _FRAMES.sub("", other.stdout), _FRAMES.sub("", stderr)
    found = []
    if says and says not in said:
        found.append(f"llmtop does not say {says!r} on stderr, but {said!r}")
    elif below_run and not says:
        found += _one_line(said, other, line)
    if plain.exit != other.exit:
        found.append(f"exit code {plain.exit} -> {other.exit}; stderr: {other.stderr[-2000:]}")
    found += _texts("stdout", plain.stdout, stdout)
    found += _texts("stderr", plain.stderr, stderr)
    found += [f"file {line}" for line in _mappings(plain.files, other.files)]
    found += [f"process {name} came to its end in one run only" for name in plain.digests.keys() ^ other.digests]
    for name in sorted(plain.digests.keys() & other.digests):
        found += [f"{name}: {line}" for line in _processes(plain.digests[name], other.digests[name], passing)]
    return found


def wrongly_heard(program: Program, kind: str, heard: Mapping[str, Heard]) -> list[str]:
    """What a monitor says of the processes of a program that is not so."""
    found = []
    for process, of in sorted(heard.items()):
        expected = program.says("steps", kind, process)
        if expected is None:
            found.append(f"{process}: the header does not say how many steps it has")
            continue
        found += [f"{process}: {line}" for line in _steps(expected, of)]
        if expected == "none":
            continue
        found += [f"{process}: {line}" for line in _of_a_step(program, kind, process, of.steps)]
        said, note = program.says("note", kind, process), of.hello and of.hello.note
        if said is None and note:
            found.append(f"{process}: the monitor notes {note!r}, and there is nothing to say")
        elif said is not None and said not in (note or ""):
            found.append(f"{process}: the monitor notes {note!r}, not {said!r}")
    return found


def _steps(expected: str, heard: Heard) -> Iterator[str]:
    if expected == "none":
        if heard.hello is not None:
            yield f"it publishes {len(heard.steps)} steps, and there is nothing to publish"
        return
    if heard.hello is None:
        yield f"it does not publish; {expected} steps are right"
        return
    indices = [step.index for step in heard.steps]
    if expected == "unknown":
        if indices:
            yield f"it publishes steps {indices[0]} to {indices[-1]}, and nobody can know them"
        return
    least, _, most = expected.partition("..")
    if not indices or not int(least) <= indices[-1] + 1 <= int(most or least):
        yield f"the last step is number {indices[-1] + 1 if indices else None}; right is {expected}"
    elif indices[0] > 1 or indices != list(range(indices[0], indices[-1] + 1)):
        yield f"the steps heard are {indices}"


def _of_a_step(program: Program, kind: str, process: str, steps: list[StepDone]) -> Iterator[str]:
    """Of the last but one: the last may be of a smaller batch."""
    if not steps:
        return
    step = steps[-2] if len(steps) > 1 else steps[-1]
    phases = program.says("phases", kind, process)
    names = {phase.name for phase in step.phases}
    if phases is not None and names != set(phases.split()):
        yield f"the phases of a step are {sorted(names)}; right is {sorted(phases.split())}"
    for key in ("tokens", "samples"):
        right = program.says(key, kind, process)
        counted = getattr(step, key)
        if right is not None and counted != (None if right == "none" else float(right)):
            yield f"a step has {counted} {key}; right is {right}"


def _split(text: str) -> tuple[str, str]:
    """What the program and what llmtop have written; ours goes onto a line of its own within a progress bar."""
    text = _IN_A_BAR.sub(r"\1\2", text)
    attached = "".join(match[0] for match in ATTACHED.finditer(text))
    lines = ATTACHED.sub("", text).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("llmtop: ")), attached + "".join(
        line for line in lines if line.startswith("llmtop: ")
    )


def _one_line(said: str, of: Outcome, line: str | None) -> Iterator[str]:
    """What `llmtop run` says: where it has attached that it has, exactly once; else at most why it has not."""
    published = any(heard.hello is not None for heard in of.heard.values())
    if line is not None:
        published = line == "attached"
    lines = said.splitlines(keepends=True)
    if published and not (len(lines) == 1 and ATTACHED.fullmatch(lines[0])):
        yield f"it is attached, and llmtop says {said!r}"
    elif not published and not (len(lines) <= 1 and said.startswith(NOT_ATTACHED if lines else "")):
        yield f"nothing of it is attached, and llmtop says {said!r}"


def _texts(name: str, plain: str, other: str) -> Iterator[str]:
    if plain != other:
        pairs = zip_longest(plain.splitlines(), other.splitlines(), fillvalue="<nothing>")
        first = next(((a, b) for a, b in pairs if a != b), ("", "ends of lines"))
        yield f"{name} at its first difference: {first[0]!r} -> {first[1]!r}; in all: {other[-1500:]}"


def _mappings(plain: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*plain, *other]):
        before, now = plain.get(key, "<absent>"), other.get(key, "<absent>")
        if isinstance(before, dict) and isinstance(now, dict):
            yield from (f"{key}: {line}" for line in _mappings(before, now))
        elif before != now:
            yield f"{key}: {str(before)[:700]} -> {str(now)[:700]}"


def _processes(plain: Mapping[str, Any], other: Mapping[str, Any], passing: str) -> Iterator[str]:
    yield from _mappings(plain["values"], other["values"])
    yield from _mappings(_without(passing, plain["process"]), _without(passing, other["process"]))
    before, now = (Counter(tuple(entry) for entry in run["descriptors"]) for run in (plain, other))
    if lost := before - now:
        yield f"descriptors that are no longer there: {dict(lost)}"
    if more := [entry for entry in now - before if entry[0] not in OURS[0] or entry[1] is not OURS[1]]:
        yield f"descriptors (what, whether closed on exec) that were not there before: {more}"
    before, now = (Counter(run.get("inherited", ())) for run in (plain, other))
    if before != now:
        yield f"descriptors that a child inherits: without {dict(before - now)}, but {dict(now - before)}"


def _without(passing: str, process: Mapping[str, Any]) -> dict[str, Any]:
    """The same without those threads.

    Whether a thread of a pool is there at a program's end depends on how busy the machine is, in plain runs, too.
    So these are neither missed nor too many, in the programs alone that name them. All others are compared both
    ways, since llmtop could as well end a thread, or keep one from starting, as start one.
    """
    patterns = passing.split()
    threads = [line for line in process["threads"] if not any(fnmatchcase(line.split()[0], p) for p in patterns)]
    return {**process, "threads": threads}

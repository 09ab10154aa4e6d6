"""Results of `llmtop bench`, as in metrics.json: of each run, and of all of them together."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from llmtop.bench.model.comparison import BenchComparison, Ranking
from llmtop.version import __version__

SCHEMA = 1
"""Grows when a field changes its meaning or goes; a new field does not change it."""

METRICS_FILE = "metrics.json"

EndReason = Literal["window", "itself", "crashed", "interrupted", "killed", "failed"]
"""How a run ended: "window": asked to end (SIGINT) once its window was whole; "itself": with exit code 0 before
that, or because it was let (--to-end); "crashed": with another exit code or by a signal, neither asked for;
"interrupted": bench itself was interrupted; "killed": with SIGKILL because --kill allowed that; "failed": bench
could not go on (a full disk), or no step ended for `step_timeout_seconds`."""

State = Literal["running", "done", "interrupted", "failed"]
"""State of all runs; "running" in a file without a writer means that bench was killed."""
ENOUGH_SHARE = 0.5
"""Share of the window that a command must have made if it ended by itself with exit code 0 before the window
was whole."""


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run."""

    warmup: int = 10
    """Steps that are dropped first."""
    steps: int | None = 100
    """Steps of the window; None where `seconds` limits it."""
    seconds: float | None = None
    runs: int = 3
    """Runs of each variant."""
    to_end: bool = False
    """True if the command runs to its own end after its window is whole."""
    turns: float | None = None
    """Seconds of a turn where all variants run at the same time in turns (--turns); 0: chosen from the steps of
    the warm-up. None: one run follows the other."""
    step_timeout_seconds: float = 1800.0
    """End a run in which no step ends for so long before its window is whole."""
    kill: bool = False
    """Kill a command that does not end after SIGINT."""
    diff: bool = True
    """Store the hash and the statistics of the difference to the git commit in environment.json."""
    keep_diff: bool = False
    """Store the text of that difference too, without secrets."""


class MeasuredSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that were measured, each of them, by the host's clock of the training."""

    started_at: float
    """Unix time at which the first of them began."""
    seconds: float
    """Time from the start of the first step to the end of the last; with --turns the sum of the steps."""
    warmup_steps: int
    """How many before it were dropped."""
    step_seconds: list[float]
    """Duration of each step from its start to the start of the next; of each request likewise."""
    step_tokens: list[float] | None = None
    """Tokens of each of these steps, over all ranks; None unless every step reported them."""
    step_samples: list[float] | None = None
    """The same of samples."""
    ranks: int = 1
    """How many processes stepped together."""
    kind: Literal["step", "request"] = "step"
    lost: int = 0
    """Steps that were made meanwhile and did not arrive here: in no figure."""
    whole: bool = True
    """True if it is as long as was asked for."""
    step_rounds: list[int] | None = None
    """With --turns: number of the round of turns that each step was made in. Steps of the same number in both
    commands are neighbours in time."""
    turn_seconds: float | None = None
    """With --turns: usual length of a turn."""
    interrupted_steps: int = 0
    """With --turns: steps that a pause interrupted; they are in no figure."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a window. None means unknown. The names are those that --metric takes."""

    steps_per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    step_seconds_mean: float | None = None
    step_seconds_p50: float | None = None
    step_seconds_p95: float | None = None
    step_seconds_p99: float | None = None
    """Start to start, by the host's clock."""
    ttft_seconds_p50: float | None = None
    ttft_seconds_p95: float | None = None
    ttft_seconds_p99: float | None = None
    """Time of requests from their start to their first token (p50, p95, p99)."""
    tpot_seconds_p50: float | None = None
    tpot_seconds_p95: float | None = None
    tpot_seconds_p99: float | None = None
    """Time of requests per token after the first (p50, p95, p99)."""
    gpu_idle_pct: float | None = None
    """Mean over the GPUs of its ranks."""
    gpu_idle_bound: bool = False
    """True: it was idle for at least that."""
    gpu_idle_source: str | None = None
    """Its source: "events", "util" or "sm" (llmtop/model/gpu_busy.py)."""
    power_watts: float | None = None
    """Power of all GPUs of its ranks together, the mean over the window."""
    energy_joules: float | None = None
    """Energy of all GPUs of its ranks over the window."""
    energy_joules_per_token: float | None = None
    memory_peak_bytes: int | None = None
    """The most that torch's allocator had in use on one GPU, by any rank, since the run began."""
    mfu_pct: float | None = None
    mfu_note: str | None = None
    """Which peak it was divided by, or why there is none."""
    overhead_seconds: float | None = None
    """Overhead per step of being attached, by the training's own estimate."""


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command."""

    number: int
    """Number from 1, in the order in which the runs were made."""
    folder: str
    """Where its files are, relative to the one of all runs."""
    label: str = ""
    """Which variant it is of; "" where there is one alone."""
    command: list[str] = []
    """Command as it was started, without secrets."""
    variables: dict[str, str] = {}
    """Environment variables set for the run, without secrets."""
    attached: bool = True
    """False of the bare run, which llmtop was no part of."""
    started_at: float
    """Unix time."""
    wall_seconds: float
    """Time from its start to its end, with everything; with --turns the pauses included."""
    exit_code: int | None = None
    """Exit code of the command; None where a signal ended it, or it has not ended."""
    signal: str | None = None
    """The signal that ended it: "SIGINT"."""
    last_stderr_line: str = ""
    """Last line on standard error of a run that crashed, without secrets; else ""."""
    ended: EndReason
    steps_seen: int = 0
    """All whole steps, warm-up and what came after the window included."""
    window: MeasuredSteps | None = None
    """None where there was no step after warm-up."""
    figures: RunFigures = RunFigures()
    verdict: str = "unknown"
    """Verdict on its steps, as in `llmtop report`; with --turns always "unknown"."""
    verdict_summary: str = ""
    unsteady: list[str] = []
    """Why the window is not steady, one sentence each; empty where it is."""
    notes: list[str] = []


class FigureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the runs of one variant."""

    median: float
    lowest: float
    highest: float
    spread_pct: float
    """Difference of highest and lowest, in percent of the median."""
    runs: int
    is_lower_bound: bool = False
    """True if the figure of any of the runs is a lower bound."""


class Bench(msgspec.Struct, kw_only=True):
    """metrics.json: all runs."""

    schema: int = SCHEMA
    llmtop: str = __version__
    state: State = "running"
    started_at: float
    """Unix time."""
    finished_at: float | None = None
    host: str
    command: list[str]
    """Command line without secrets."""
    settings: BenchSettings
    environment: dict[str, str] = {}
    """The main facts of environment.json: GPUs, driver, CUDA, torch, commit, host."""
    runs: list[BenchRun] = []
    figures: dict[str, dict[str, FigureSummary]] = {}
    """Figures by the variant's label and the figure's name, over its whole attached runs."""
    comparison: BenchComparison | None = None
    """Comparison with the reference of these runs; None without a reference."""
    ranking: Ranking | None = None
    """Ranking of the values of --vary."""
    folder: str | None = None
    """Folder of the artifacts of a baseline, for a later comparison of captures."""
    attach_cost_text: str | None = msgspec.field(default=None, name="attaching")
    """Cost of being attached against a bare run, in words; None without a bare run."""
    notes: list[str] = []


class BenchMetric(NamedTuple):
    """A figure that runs can be compared by."""

    name: str
    """Name of the field in `RunFigures`."""
    title: str
    unit: str
    more_is_better: bool
    short: str = ""
    """Short form that --metric accepts besides the name."""


METRICS: tuple[BenchMetric, ...] = (
    BenchMetric("steps_per_s", "steps/s", "steps/s", True),
    BenchMetric("samples_per_s", "samples/s", "samples/s", True),
    BenchMetric("tokens_per_s", "tokens/s", "tokens/s", True),
    BenchMetric("step_seconds_mean", "mean step", "s", False, "mean"),
    BenchMetric("step_seconds_p50", "step p50", "s", False, "p50"),
    BenchMetric("step_seconds_p95", "step p95", "s", False, "p95"),
    BenchMetric("step_seconds_p99", "step p99", "s", False, "p99"),
    BenchMetric("ttft_seconds_p50", "TTFT p50", "s", False, "ttft"),
    BenchMetric("ttft_seconds_p95", "TTFT p95", "s", False),
    BenchMetric("ttft_seconds_p99", "TTFT p99", "s", False),
    BenchMetric("tpot_seconds_p50", "TPOT p50", "s", False, "tpot"),
    BenchMetric("tpot_seconds_p95", "TPOT p95", "s", False),
    BenchMetric("tpot_seconds_p99", "TPOT p99", "s", False),
    BenchMetric("gpu_idle_pct", "GPU idle", "%", False),
    BenchMetric("power_watts", "power", "W", False),
    BenchMetric("energy_joules_per_token", "energy a token", "J", False),
    BenchMetric("memory_peak_bytes", "memory peak", "B", False),
    BenchMetric("mfu_pct", "MFU", "%", True, "mfu"),
)


UNKNOWN_IN_TURNS = frozenset({"gpu_idle_pct", "power_watts", "energy_joules_per_token", "mfu_pct"})
"""Metrics that runs with --turns lack: counters of the GPU show all commands."""


def is_bound(figures: RunFigures, metric: BenchMetric) -> bool:
    """Return True if this figure of a run is a bound, not a value."""
    return metric.name == "gpu_idle_pct" and figures.gpu_idle_bound


def has_enough_steps(run: BenchRun, settings: BenchSettings) -> bool:
    """Return True if a run has steps enough to count: a whole window, or most of one and a good end."""
    if run.window is None or run.ended in ("crashed", "failed", "interrupted"):
        return False
    asked = settings.seconds if settings.steps is None else settings.steps
    made = sum(run.window.step_seconds) if settings.steps is None else len(run.window.step_seconds)
    return run.window.whole or (run.ended == "itself" and made >= ENOUGH_SHARE * (asked or 0.0))

"""One to three lines to copy for each command, below its --help."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "which": (
        ("llmtop which", "all symptoms"),
        ("llmtop which input_bound", "the first tool for an alert, and its command"),
        ("llmtop which GPU memory grows", "the same by words"),
    ),
    "mcp": (("llmtop mcp", "what the configuration of a coding agent starts"),),
    "schema": (
        ("llmtop schema", "the names of all schemas"),
        ("llmtop schema snapshot", "what llmtop --json prints on each line"),
    ),
    "live": (
        ("llmtop", "the screen"),
        ("llmtop --gpus attached -i 2", "only GPUs that trainings use, every 2 s"),
        ("llmtop --json | jq .alerts", "the alerts, for a program"),
    ),
    "run": (
        ("llmtop run -- python train.py", "attached, with nothing else changed"),
        ("llmtop run --nsys -- torchrun --nproc-per-node 8 train.py", "so that nsys can capture it"),
    ),
    "capture": (
        ("llmtop capture", "five steps of the one training there is"),
        ("llmtop capture --rank 3 --steps 10", "ten steps of one rank"),
        ("llmtop capture --when 'step > 2x' --max 3", "the next three slow steps, by themselves"),
        ("llmtop capture --at-step +20 --ranks 0,7", "the same step on two ranks of any node"),
    ),
    "captures": (
        ("llmtop captures", "what there is, and what it takes"),
        ("llmtop captures --keep 5", "delete all but the newest five"),
    ),
    "runs": (
        ("llmtop runs", "what ran on this node, how long, and how it ended"),
        ("llmtop runs show", "the newest run: steps, waits, restarts, goodput"),
        ("llmtop runs open", "the screen on the newest run, in its last minute"),
    ),
    "report": (
        ("llmtop report llmtop-captures/NAME", "verdict, what to do, where the step goes"),
        ("llmtop report trace.json.gz --full", "everything, of a trace of torch.profiler"),
    ),
    "compare": (
        ("llmtop compare BEFORE AFTER", "what moved by more than the noise"),
        ("llmtop compare BEFORE AFTER --fail-over 5", "for CI: exit 1 where steps got 5 % longer"),
        ("llmtop compare run:-2 run:-1", "the newest run against the one before"),
    ),
    "bench": (
        ("llmtop bench -- python train.py", "three runs of 100 steps each, after 10 to warm up"),
        (
            "llmtop bench --baseline b.json --fail-over 5 -- python train.py",
            "for CI: exit 1 where it got 5 % slower",
        ),
        (
            "llmtop bench --against 'python old.py' --turns auto --fail-over 5 -- python train.py",
            "on a noisy machine: both at the same time, in short turns",
        ),
        ("llmtop bench --vary NUM_WORKERS=2,4,8 -- python train.py", "which value is best, if any"),
    ),
    "kernel": (
        ("llmtop kernel llmtop-captures/NAME --top 3", "the ncu commands for its three hottest kernels"),
        ("llmtop kernel llmtop-captures/NAME --run", "run the first, and say what limits the kernel"),
        ("llmtop kernel FILE.ncu-rep", "what ncu measured, wherever that was"),
    ),
    "postmortem": (
        ("llmtop postmortem logs/ dumps/", "who failed first, and who only waited"),
        ("llmtop postmortem JOB_FOLDER --json | jq .culprits", "for a program; exit 3 where it is not decided"),
    ),
    "tail": (
        ("llmtop tail", "the newest run of this node, rank by rank"),
        ("llmtop tail --slowest", "the slow step that is already over, with its stacks"),
    ),
    "record": (
        ("llmtop record night.llmtop.gz --seconds 28800", "eight hours, without a screen"),
        ("llmtop record run.llmtop.gz --on-alert 'mail -s llmtop me'", "and a mail for each alert"),
        ("llmtop record --daemon", "GPU signals and alerts into the runs, in the background"),
        ("llmtop record --daemon --stop", "end that"),
    ),
    "replay": (
        ("llmtop replay night.llmtop.gz", "the same screen; < and > go back and on"),
        ("llmtop replay night.llmtop.gz --json | jq .time", "for a program, as fast as it reads"),
    ),
    "demo": (("llmtop demo", "a recorded run of a real H200"),),
    "doctor": (
        ("llmtop doctor", "what this machine allows, and what would change it"),
        ("llmtop doctor --json", "for a program"),
    ),
    "export": (
        ("llmtop export", "this node's figures on 127.0.0.1:9401, for Prometheus"),
        ("llmtop export --otlp http://host:4318/v1/metrics", "push them to an OpenTelemetry collector"),
        ("llmtop export --rules > llmtop-rules.yml", "recording and alerting rules for it"),
    ),
    "cluster": (
        ("llmtop cluster --prometheus http://prometheus:9090", "all nodes, the worst first"),
        ("llmtop cluster --once --json", "once, for a program; $LLMTOP_PROMETHEUS names the server"),
    ),
    "config": (
        ("llmtop config --check", "exit 0 if config.toml can be used, 2 if not"),
        ("llmtop config", "its path, and what it sets"),
    ),
    "completion": (
        ('eval "$(llmtop completion bash)"', "in this shell; as a line of ~/.bashrc, in all"),
        ("llmtop completion fish > ~/.config/fish/completions/llmtop.fish", "for fish"),
    ),
}


def epilog(command: str) -> str:
    """Return the examples of a command as click shows them below its options; empty for one that has none."""
    lines = EXAMPLES.get(command, ())
    if not lines:
        return ""
    widest = max(len(line) for line, _ in lines)
    if widest > 60:  # side by side they would be wider than a terminal
        shown = [f"  {line}\n      {what}" for line, what in lines]
    else:
        shown = [f"  {line:<{widest}}  {what}" for line, what in lines]
    return "\n".join(["\b", "Examples:", *shown])

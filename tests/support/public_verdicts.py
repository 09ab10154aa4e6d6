"""Compare reports with the verdicts on public files (tests/data/public_verdicts.tsv, docs/measurements.md).

python -m tests.support.public_verdicts FOLDER [--list]

FOLDER has the files as OWNER__REPOSITORY/NAME, "/" in the path being "__"; they are not part of this repository.
Files of nsys need LLMTOP_NSYS, those of XLA the package xprof. Prints how many verdicts are right, wrong and
abstained, by kind of file, and how much of the required is there and of the forbidden is said; --list adds a line
for each file that is not right. Exit code 0 whatever the counts are.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.judged_advice import FORBIDDEN, REQUIRED
from tests.support.processes import REPOSITORY

VERDICTS = REPOSITORY / "tests" / "data" / "public_verdicts.tsv"
SECONDS = 400
BUSY_POINTS = 3.0
"""Percentage points by which two busy shares may differ: other windows count as well."""
STEP_RATIO = 1.05
_HOLDERS: Final = {"unknown": "before_recording", "optimizer": "optimizer_state"}
_SUMMARY_PCT = 1.0
"""Of the peak: what holds less is not said to hold something."""


class Answer(NamedTuple):
    """What llmtop makes of one file."""

    exit_code: int
    report: dict[str, Any] | None
    """None where the file was refused."""
    text: str
    """What was printed for a reader, as one line."""
    everything: str
    """JSON and text."""


def entries() -> list[dict[str, str]]:
    """Return the rows of the table."""
    with VERDICTS.open() as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def place_of(entry: Mapping[str, str], folder: Path) -> Path:
    """Return where the file of a row lies."""
    return folder / entry["repository"].replace("/", "__") / entry["path"].replace("/", "__")


def answer_of(path: Path) -> Answer:
    """Return what `llmtop report` says of a file, as JSON and as text."""
    printed = []
    for more in (["--json"], []):
        command = [sys.executable, "-m", "llmtop", "report", str(path), *more]
        printed.append(
            subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=REPOSITORY)
        )
    as_json, as_text = printed
    return made_answer(as_json.returncode, as_json.stdout, as_text.stdout + as_json.stderr + as_text.stderr)


def made_answer(exit_code: int, as_json: str, text: str) -> Answer:
    """Return an answer from what was printed."""
    report = json.loads(as_json) if as_json.strip() else None
    line = " ".join(text.split())
    return Answer(exit_code, report if isinstance(report, dict) else None, line, f"{as_json} {line}")


def verdict_of(answer: Answer) -> str:
    """Return the verdict; of a snapshot what holds most at the peak; "refused" without a report."""
    report = answer.report
    if report is None:
        return "refused"
    if report.get("kind") != "memory":
        return str(report.get("verdict"))
    held = _held(report)
    name = max(held, key=lambda one: held[one], default="unknown")
    return _HOLDERS.get(name, name)


def _held(report: Mapping[str, Any]) -> dict[str, int]:
    """Bytes at the peak by holder, of the device that holds most."""
    device = max(report["devices"], key=lambda one: (one.get("peak") or {}).get("bytes", 0), default=None)
    if device is None:
        return {}
    held = {one["name"]: one.get("peak_bytes") for one in device["holders"]}
    return {
        name: one["bytes"] if value is None else value
        for (name, value), one in zip(held.items(), device["holders"], strict=True)
    }


def verdict_result(entry: Mapping[str, str], answer: Answer) -> str:
    """Return right, wrong or abstained: no verdict where one is decided is abstained."""
    said, accepted = verdict_of(answer), entry["verdict"].split(";")
    if said in accepted:
        return "right"
    return "abstained" if said in ("unknown", "idle", "refused", "other") else "wrong"


def step_result(entry: Mapping[str, str], answer: Answer) -> str:
    """Return right, wrong or missing of the step's time; "" where none was judged."""
    if entry["step_ms"] == "-" or answer.report is None:
        return ""
    steps = answer.report.get("steps") or {}
    timed = [steps[name] * 1e3 for name in ("seconds_p50", "seconds_mean") if steps.get(name)]
    ratios = [one / float(entry["step_ms"]) for one in timed]
    if not ratios:
        return "missing"
    return "right" if any(1 / STEP_RATIO <= one <= STEP_RATIO for one in ratios) else "wrong"


def busy_result(entry: Mapping[str, str], answer: Answer) -> str:
    """Return right or differs of the busy share, where it was judged."""
    shares = [
        one["busy_pct"] for one in (answer.report or {}).get("devices") or () if one.get("busy_pct") is not None
    ]
    if entry["busy_pct"] == "-" or not shares:
        return ""
    return "right" if any(abs(one - float(entry["busy_pct"])) <= BUSY_POINTS for one in shares) else "differs"


_PLACE: Final = re.compile(r"[\w.]+\.py:\d+")
_ASKED: Final = (
    (r"^launch$", r"kernel launches"),
    (r"data loader|num_workers", r"DataLoader\(num_workers"),
    (r"copies from host", r"copies between host and device"),
    (r"weights stay", r"weights kept on the GPU"),
    (r"cudaMalloc|cudaFree", r"allocate or free device memory|cudaFree"),
    (r"before the recording", r"before the recording"),
    (r"fused or non-foreach|fused or non.foreach", r"fused=True"),
    (r"fused attention|attention scores", r"scaled_dot_product|scores of attention"),
    (r"gradients", r"gradients [\d.]+ [GM]iB|Gradients"),
    (r"optimizer state", r"optimizer state"),
    (r"rocprofiler", r"rocprofiler"),
    (r"memory timeline", r"memory timeline"),
    (r"graph capture", r"capturing CUDA graphs"),
    (r"mkldnn|convolution|operators of the CPU", r"On the CPU aten::"),
    (r"no (kernels|CUDA events|GPU activity)", r"no GPU activity"),
    (r"unified memory, or one kernel", r"in 1 kernel|page migration|unified memory"),
    (r"TF32 or bf16", r"allow_tf32"),
    (r"fp16 for fp32", r"float16"),
    (r"all-to-all", r"all-to-all"),
    (r"not an export of nsys", r"not an export of nsys"),
    (r"not a GPU trace of torch", r"of another program"),
)  # fmt: skip
"""What a required phrase is about, and what fulfils it, before those of `judged_advice`."""


def _is_fulfilled(asked: str, text: str) -> bool | None:
    """None where no pattern is for the phrase."""
    places = _PLACE.findall(asked)
    if places:
        return all(place in text for place in places)
    pattern = next((said for about, said in (*_ASKED, *REQUIRED) if re.search(about, asked, re.I)), None)
    return None if pattern is None else bool(re.search(pattern, text, re.I))


def _has_finding(name: str) -> Callable[[Answer], bool]:
    return lambda answer: any(one["id"] == name for one in (answer.report or {}).get("findings") or ())


def _has_verdict(name: str) -> Callable[[Answer], bool]:
    return lambda answer: verdict_of(answer) == name


def _says(pattern: str) -> Callable[[Answer], bool]:
    return lambda answer: bool(re.search(pattern, answer.text, re.I))


def _advises_first(words: str) -> Callable[[Answer], bool]:
    return lambda answer: words in ((answer.report or {}).get("findings") or [{}])[0].get("fix", "")


def _holds_optimizer_state(answer: Answer) -> bool:
    held = _held(answer.report or {"devices": ()})
    return held.get("optimizer", 0) > _SUMMARY_PCT / 100 * sum(held.values())


_RULED_OUT: Final[tuple[tuple[str, Callable[[Answer], bool]], ...]] = (
    (r"micro-batch", _has_finding("micro_batch")),
    (r"checkpointing", _has_finding("checkpointing")),
    (r"temporaries of the optimizer", _has_finding("optimizer_temporaries")),
    (r"optimizer state holds most", _has_verdict("optimizer_state")),
    (r"activations hold most", _has_verdict("activations")),
    (r"^optimizer state$", _holds_optimizer_state),
    (r"inductor cache", _says(r"\bc[a-z2-7]{48,}\.py")),
    (r"^damaged$", _says(r"damaged")),
    (r"pinned memory", _says(r"pin_memory=True|Copy from pinned")),
    (r"ceiling", _says(r"tensor cores are (the limit|full)")),
    (r"tensor cores", _says(r"tensor cores?")),
    (r"first advice", _advises_first("CUDA graphs")),
    (r"TF32 \(a T4", _says(r"allow_tf32")),
    (r"GPU idle|^idle", _says(r"the GPU is idle")),
    (r"GPU advice", _says(r"mode='reduce-overhead'")),
    (r"CUDA graphs|torch.compile", _says(r"mode='reduce-overhead'\) or CUDA graphs")),
    (r"language model|vLLM|tokens", _says(r"vLLM|tokens per second|KV cache")),
    (r"data.?loader", _has_verdict("input_bound")),
    (r"step takes 329", _says(r"step takes 329")),
    (r"no device activity|kineto|0 ns|NVIDIA", _says(r"no device activity|\b0 ns\b")),
)  # fmt: skip
"""What a forbidden phrase is about, and whether an answer says it, before those of `judged_advice`."""


def _is_said(ruled_out: str, answer: Answer) -> bool | None:
    """None where no pattern is for the phrase."""
    if ruled_out.endswith("_bound"):
        return verdict_of(answer) == ruled_out
    place = _PLACE.search(ruled_out)
    if place is not None:
        lines = [one for device in (answer.report or {}).get("devices") or () for one in device.get("lines") or ()]
        return any(
            one["name"].startswith(place[0]) and one["holder"] in ruled_out.partition(" as ")[2] for one in lines
        )
    for about, says in _RULED_OUT:
        if re.search(about, ruled_out, re.I):
            return says(answer)
    other = next((says for about, says in FORBIDDEN if re.search(about, ruled_out, re.I)), None)
    return None if other is None else other(answer.report or {}, answer.text)


def advice_result(entry: Mapping[str, str], answer: Answer) -> tuple[Counter[str], list[str]]:
    """Count what is required and what is forbidden, with a line for each that is not right."""
    counts, wrong = Counter[str](), []
    for asked in filter(lambda one: one != "-", entry["required"].split("; ")):
        found = _is_fulfilled(asked, answer.everything)
        counts[f"required {'not mechanised' if found is None else 'found' if found else 'missed'}"] += 1
        wrong += [] if found else [f"missed: {asked}" if found is False else f"not mechanised: {asked}"]
    for ruled_out in filter(lambda one: one != "-", entry["forbidden"].split("; ")):
        said = _is_said(ruled_out, answer)
        counts[f"forbidden {'not mechanised' if said is None else 'said' if said else 'avoided'}"] += 1
        wrong += [f"said: {ruled_out}"] if said else []
    return counts, wrong


class Comparison:
    """Counts over all files."""

    def __init__(self) -> None:
        self.by_engine: dict[str, Counter[str]] = {}
        self.others: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []

    def add(self, entry: Mapping[str, str], answer: Answer) -> None:
        """Compare one file."""
        result = verdict_result(entry, answer)
        decided = "decided" if entry["decidable"] == "yes" else "undecidable"
        for name in ("all", decided, f"engine {entry['engine']}"):
            self.by_engine.setdefault(name, Counter())[result] += 1
        advised, wrong = advice_result(entry, answer)
        self.others.setdefault("advice", Counter()).update(advised)
        for name, found in (("step", step_result(entry, answer)), ("busy", busy_result(entry, answer))):
            self.others.setdefault(name, Counter())[found or "none judged"] += 1
            wrong += [f"{name} {found}"] if found not in ("", "right") else []
        self.others.setdefault("exit code", Counter())[str(answer.exit_code)] += 1
        if "Traceback" in answer.text:
            wrong.append("traceback")
        if result != "right" or wrong:
            said = verdict_of(answer)
            self.wrong.append(
                f"{place_of(entry, Path())}: {result}: {said}, judged {entry['verdict']}; {'; '.join(wrong)}"
            )


def main() -> None:
    """Compare all files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    comparison = Comparison()
    for entry in entries():
        path = place_of(entry, arguments.folder)
        if path.exists():
            comparison.add(entry, answer_of(path))
        else:
            print(f"{path} is not there")
    for line in comparison.wrong if arguments.list else ():
        print(line)
    for name, counts in (*sorted(comparison.by_engine.items()), *comparison.others.items()):
        print(f"{name}: {dict(counts)}")


if __name__ == "__main__":
    main()

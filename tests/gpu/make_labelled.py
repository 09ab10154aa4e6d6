"""Record small captures whose bottleneck is known, on a real GPU, for tests of the report.

    python -m tests.gpu.make_labelled --nsys /path/to/nsys --out OUT             one GPU, both engines, < 6 min
    python -m tests.gpu.make_labelled --nsys /path/to/nsys --out OUT --gpus 2    DDP on two GPUs, < 3 min
    python -m tests.gpu.make_labelled --out OUT --dry                            the same machinery on a CPU

Needs torch alone. Leaves OUT/captures-N.tar (each at most 15 MiB, for N GPUs: captures-N-0.tar, …) and
OUT/labels-N.json: for each capture the plant, the step's time with and without it in the same process, and the
share of the step that the plant really cost.

Two passes, because CUPTI serves one tracer at a time: one process under `nsys launch` for all nsys captures, one
without for all of torch.profiler's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from tests.gpu.trim import trim_chrome_json, trim_sqlite

REPOSITORY = Path(__file__).resolve().parents[2]
TAR_LIMIT_BYTES = 15 << 20
KEY = b"labelled"


# ---- the training side ----


class _Worker:
    """One rank: builds loops on demand and steps them until it is told a step to stop at."""

    def __init__(self, address: str, rank: int, world: int, dry: bool) -> None:
        import torch

        self.torch, self.rank, self.world = torch, rank, world
        self.device = "cpu" if dry else "cuda"
        if not dry:
            torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = True
        if world > 1:
            torch.distributed.init_process_group("gloo" if dry else "nccl")
        self.connection: Connection = Client(address, authkey=KEY)
        self.connection.send(("hello", rank))
        self.plain: dict[tuple[Any, ...], float] = {}
        self.at = 0
        self.stop_at: int | None = None

    def serve(self) -> None:
        while True:
            message = self.connection.recv()
            if message[0] == "quit":
                return
            try:
                (self.run if message[0] == "run" else self.kineto)(*message[1:])
            except Exception as error:  # noqa: BLE001  # one broken case must not cost the others their GPU time
                self.connection.send(("failed", f"{type(error).__name__}: {error}"))

    def _mark(self, case: Any, engine: str) -> Any:
        if not case.annotated:
            return lambda _name: contextlib.nullcontext()
        if engine == "kineto":
            return self.torch.profiler.record_function
        if self.device == "cpu":
            return lambda _name: contextlib.nullcontext()  # torch's NVTX comes with CUDA builds only
        return self.torch.cuda.nvtx.range

    def _loop(self, case: Any, engine: str) -> tuple[Any, float, float]:
        from tests.gpu.planted import Loop

        mark = self._mark(case, engine)
        like = (case.size, case.optimizer, bool(case.options.get("graph")))
        if like not in self.plain:
            plain = Loop(case, self.rank, self.world, self.device, 0.0, mark)
            self.plain[like] = self._agreed(plain.seconds_a_step())
            plain.close()
        loop = Loop(case, self.rank, self.world, self.device, self.plain[like], mark)
        return loop, self.plain[like], self._agreed(loop.seconds_a_step())

    def _agreed(self, seconds: float) -> float:
        """The same figure on every rank, so that every rank plants the same."""
        if self.world == 1:
            return seconds
        value = self.torch.tensor([seconds], device=self.device)
        self.torch.distributed.all_reduce(value)
        return float(value.item()) / self.world

    def run(self, case: Any) -> None:
        loop, plain, planted = self._loop(case, "nsys")
        self.at, self.stop_at = 0, None
        self.connection.send(("ready", plain, planted))
        listener = threading.Thread(target=self._listen)
        listener.start()
        try:
            while self.stop_at is None or self.at < self.stop_at:
                loop.step()
                self.at += 1
        finally:
            listener.join(600)  # also after an error: it must not take the next case's message
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        loop.close()
        self.connection.send(("done",))

    def _listen(self) -> None:
        while True:
            message = self.connection.recv()
            if message[0] == "where":
                self.connection.send(("at", self.at))
            else:
                self.stop_at = message[1]
                return

    def kineto(self, case: Any, steps: int, path: str) -> None:
        loop, plain, planted = self._loop(case, "kineto")
        profiler = self.torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        # An annotated loop counts its steps for the profiler, a bare one does not (as through the Kineto fabric).
        schedule = profiler.schedule(wait=0, warmup=1, active=steps, repeat=1) if case.annotated else None
        written = Path(f"{path}.rank{self.rank}.json")
        session = profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=lambda done: done.export_chrome_trace(str(written)),
        )
        with session:
            for _ in range(steps + 1):
                loop.step()
                if case.annotated:
                    session.step()
            if not case.annotated and self.device == "cuda":
                self.torch.cuda.synchronize()
        loop.close()
        self.connection.send(("ready", plain, planted))


def _spawn_ranks(address: str, world: int, dry: bool) -> int:
    children = []
    for rank in range(world):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": os.environ.get("MASTER_PORT", "29517"),
        }
        command = [sys.executable, "-m", "tests.gpu.make_labelled", "--worker", address, "--gpus", str(world)]
        children.append(subprocess.Popen([*command, *(["--dry"] if dry else [])], env=environment, cwd=REPOSITORY))
    return max(child.wait(600) for child in children)


# ---- the driver ----


class _Ranks:
    """The connections to all ranks."""

    def __init__(self, listener: Listener, world: int) -> None:
        self.all = [listener.accept() for _ in range(world)]
        for connection in self.all:
            connection.recv()

    def ask(self, *message: Any) -> list[Any]:
        for connection in self.all:
            connection.send(message)
        return self.answers()

    def answers(self) -> list[Any]:
        answers = []
        for connection in self.all:
            if not connection.poll(40):
                raise TimeoutError("a rank did not answer for 40 s")
            answers.append(connection.recv())
        for answer in answers:
            if answer[0] == "failed":
                raise RuntimeError(answer[1])
        return answers

    def stop_loop(self, seconds_a_step: float) -> None:
        """All ranks end at the same step, or a collective would wait for ever."""
        at = max(answer[1] for answer in self.ask("where"))
        for connection in self.all:
            connection.send(("stop_at", at + 5 + int(0.2 / seconds_a_step)))
        self.answers()

    def quit(self) -> None:
        for connection in self.all:
            with contextlib.suppress(OSError):
                connection.send(("quit",))


class _Session:
    """One process tree, under nsys or not, and what it takes to capture from it."""

    def __init__(self, work: Path, world: int, nsys: str | None, dry: bool) -> None:
        self.nsys, self.name = nsys, f"labelled{os.getpid()}n{time.monotonic_ns()}"
        address = str(work / self.name)
        self.listener = Listener(address, "AF_UNIX", authkey=KEY)
        command = [sys.executable, "-m", "tests.gpu.make_labelled", "--spawn", address, "--gpus", str(world)]
        command += ["--dry"] if dry else []
        if nsys:
            launch = [nsys, "launch", f"--session-new={self.name}", "--trace=cuda,nvtx", "--cuda-graph-trace=node"]
            command = launch + command
        self.process = subprocess.Popen(command, cwd=REPOSITORY)
        self.ranks = _Ranks(self.listener, world)

    def capture_nsys(self, case: Any, out: Path) -> tuple[float, float]:
        assert self.nsys is not None
        answers = self.ranks.ask("run", case)
        plain, planted = answers[0][1], max(answer[2] for answer in answers)
        session = f"--session={self.name}"
        options = ["-f", "true", "--sample=none", "--cpuctxsw=none", "--stop-on-exit=false"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "timeout": 120}
        try:
            subprocess.run(
                [self.nsys, "start", session, "-o", str(out), *options], check=True, **quiet, timeout=3600
            )
            time.sleep(min(max(9 * planted, 0.25), 1.5))
            subprocess.run([self.nsys, "stop", session], check=True, **quiet, timeout=3600)
        finally:
            self.ranks.stop_loop(planted)
        return plain, planted

    def capture_kineto(self, case: Any, out: Path) -> tuple[float, float]:
        many_kernels = case.size in ("tiny", "small")
        answers = self.ranks.ask("kineto", case, 4 if many_kernels else 5, str(out))
        return answers[0][1], max(answer[2] for answer in answers)

    def close(self) -> None:
        self.ranks.quit()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.nsys:
            shutdown = [self.nsys, "shutdown", f"--session={self.name}", "--kill=sigkill"]
            subprocess.run(shutdown, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=60)
        self.listener.close()


def _label(case: Any, engine: str, world: int, plain: float, planted: float) -> dict[str, Any]:
    return {
        "plant": case.plant,
        "size": case.size,
        "strength": case.strength,
        "optimizer": case.optimizer,
        "annotated": case.annotated,
        "step_range": case.step_range,
        "options": case.options,
        "engine": engine,
        "gpus": world,
        "plain_step_seconds": round(plain, 6),
        "planted_step_seconds": round(planted, 6),
        "plant_share_pct": round(100 * max(0.0, 1 - plain / planted), 1),
        "files": [],
    }


def _pass(
    cases: tuple[Any, ...], engine: str, world: int, arguments: argparse.Namespace, raw: Path, deadline: float
) -> dict[str, dict[str, Any]]:
    labels: dict[str, dict[str, Any]] = {}
    session = _Session(raw, world, arguments.nsys if engine == "nsys" else None, arguments.dry)
    try:
        for case in cases:
            if time.monotonic() > deadline:
                print(f"out of time: {engine} stops before {case.name}", flush=True)
                break
            out, began = raw / f"{engine}-{case.name}", time.monotonic()
            try:
                capture = session.capture_nsys if engine == "nsys" else session.capture_kineto
                plain, planted = capture(case, out)
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"{engine} {case.name}: {error}", flush=True)
                continue
            except (TimeoutError, EOFError, OSError) as error:
                print(f"{engine} {case.name}: {error}; going on with new processes", flush=True)
                session.close()
                session = _Session(raw, world, arguments.nsys if engine == "nsys" else None, arguments.dry)
                continue
            labels[out.name] = _label(case, engine, world, plain, planted)
            took = time.monotonic() - began
            print(
                f"{out.name}: plain {plain * 1e3:.2f} ms, planted {planted * 1e3:.2f} ms, {took:.1f} s", flush=True
            )
    finally:
        session.close()
    return labels


def _finish(raw: Path, labels: dict[str, dict[str, Any]], nsys: str | None, small: Path) -> None:
    """Export, trim and gzip everything; the names of the files go into the labels."""
    for name, label in labels.items():
        if label["engine"] == "nsys":
            report, database = raw / f"{name}.nsys-rep", raw / f"{name}.sqlite"
            assert nsys is not None
            export = [
                nsys,
                "export",
                "--type=sqlite",
                "--force-overwrite=true",
                f"--output={database}",
                str(report),
            ]
            subprocess.run(export, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=120)
            if not database.exists():
                print(f"{name}: nsys exported nothing", flush=True)
                continue
            steps = 4 if label["size"] in ("tiny", "small") else 6
            target = small / f"{name}.sqlite.gz"
            trim_sqlite(database, target, steps * label["planted_step_seconds"] * 1.7)
            label["files"].append(target.name)
        else:
            for trace in sorted(raw.glob(f"{name}.rank*.json")):
                target = small / f"{trace.name}.gz"
                trim_chrome_json(trace, target)
                label["files"].append(target.name)


def _pack(small: Path, out: Path, world: int) -> None:
    """Tars of at most 15 MiB each."""
    parts: list[list[Path]] = [[]]
    size = 0
    for path in sorted(small.iterdir()):
        if size + path.stat().st_size > TAR_LIMIT_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(path)
        size += path.stat().st_size + 1024
    for number, part in enumerate(parts):
        with tarfile.open(out / f"captures-{world}-{number}.tar", "w") as tar:
            for path in part:
                tar.add(path, arcname=path.name)


def _drive(arguments: argparse.Namespace) -> int:
    from tests.gpu import planted

    world = arguments.gpus
    cases: tuple[planted.Case, ...] = planted.SINGLE if world == 1 else planted.TWO
    if arguments.held_out:
        cases = planted.HELD_OUT_SINGLE if world == 1 else planted.HELD_OUT_TWO
    if arguments.dry:
        cases = planted.CPU
    if arguments.only:
        cases = tuple(case for case in cases if arguments.only in case.name)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    raw, began = Path(tempfile.mkdtemp(prefix="lab-")), time.monotonic()
    small = raw / "small"
    small.mkdir()
    labels: dict[str, dict[str, Any]] = {}
    engines = ("nsys", "kineto") if arguments.nsys else ("kineto",)
    for index, engine in enumerate(engines):
        # The nsys captures are the dearer ones: they may take two thirds of the time when both are made.
        share = 1.0 if index == len(engines) - 1 else 0.66
        labels |= _pass(cases, engine, world, arguments, raw, began + arguments.budget * share)
    print(f"captured {len(labels)} in {time.monotonic() - began:.0f} s; trimming", flush=True)
    _finish(raw, labels, arguments.nsys, small)
    _pack(small, out, world)
    (out / f"labels-{world}.json").write_text(json.dumps(labels, indent=1))
    shutil.rmtree(raw, ignore_errors=True)
    print(f"done in {time.monotonic() - began:.0f} s: {out}", flush=True)
    return 0


def main() -> int:
    """Run the driver, or one of the processes that it starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsys", help="path of nsys; without it only torch.profiler's captures are made")
    parser.add_argument("--out", help="folder for the result")
    parser.add_argument("--gpus", type=int, default=1, help="1, or 2 for DDP")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which no new capture begins")
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("--held-out", action="store_true", help="the cases that no threshold was tuned on")
    parser.add_argument("--dry", action="store_true", help="on the CPU")
    parser.add_argument("--spawn", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.spawn:
        return _spawn_ranks(arguments.spawn, arguments.gpus, arguments.dry)
    if arguments.worker:
        _Worker(arguments.worker, int(os.environ["RANK"]), arguments.gpus, arguments.dry).serve()
        return 0
    if not arguments.out:
        parser.error("--out FOLDER is needed")
    return _drive(arguments)


if __name__ == "__main__":
    sys.exit(main())

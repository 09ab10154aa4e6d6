"""Make a recording small and nobody's, for tests/data: python -m tests.gpu.trim_recording [--shown] FOLDER FILE…

What a rule sees stays. Names of machines, processes, commands and the lines of a script go, and so do all but the
last steps of a snapshot, as many as a rule keeps. With --shown, for trainings of this repository, what a screen
shows stays as well: the machine's figures, the trainings' processes, the lines of the script. Written is a JSON
line a snapshot, xz.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

from msgspec.structs import replace

from llmtop.model.snapshot import Cause, CommunicatorRank, Host, Rank, Snapshot, StuckCommunicator, to_json
from llmtop.recording.reader_writer import Reader
from llmtop.rules.state.rank import STEPS_KEPT


def trimmed(snapshot: Snapshot) -> Snapshot:
    """What is kept of a snapshot."""
    names = {gpu.uuid: f"GPU-{gpu.index}" for gpu in snapshot.gpus}
    return replace(
        snapshot,
        host=Host(name="node", cpu_pct=snapshot.host.cpu_pct),
        gpus=tuple(replace(gpu, uuid=names[gpu.uuid]) for gpu in snapshot.gpus),
        processes=(),
        jobs=(),
        alerts=(),
        ranks=tuple(_rank(rank, names) for rank in snapshot.ranks),
        stuck_communicators=tuple(_communicator(one) for one in snapshot.stuck_communicators),
    )


def _communicator(stuck: StuckCommunicator) -> StuckCommunicator:
    """On nobody's host."""

    def nobodys(ranks: tuple[CommunicatorRank, ...]) -> tuple[CommunicatorRank, ...]:
        return tuple(replace(one, host="node") for one in ranks)

    return replace(stuck, behind=nobodys(stuck.behind), missing=nobodys(stuck.missing))


def _rank(rank: Rank, names: dict[str, str]) -> Rank:
    return replace(
        rank,
        host="node",
        command="python train.py",
        job="run",
        gpu_uuid=names.get(rank.gpu_uuid or ""),
        outside_causes=tuple(map(_place, rank.outside_causes)),
        gpu_waits=tuple(map(_place, rank.gpu_waits)),
        loading=None,
        new_steps=rank.new_steps[-STEPS_KEPT:],
    )


def _place(cause: Cause) -> Cause:
    """Its file and line; not what is written there."""
    return replace(cause, what=cause.what.split(" ")[0])


def shown(snapshot: Snapshot) -> Snapshot:
    """The same with what a screen shows of it."""
    names = {gpu.uuid: f"GPU-{gpu.index}" for gpu in snapshot.gpus}
    pids = {rank.pid for rank in snapshot.ranks}
    kept = trimmed(snapshot)
    return replace(
        kept,
        host=replace(snapshot.host, name="node", user="user", notes=()),
        processes=tuple(
            replace(process, gpu_uuid=names.get(process.gpu_uuid or ""), user="user", command="python train.py")
            for process in snapshot.processes
            if process.pid in pids
        ),
        jobs=tuple(replace(job, name="run", run_id=None, hosts=("node",)) for job in snapshot.jobs),
        ranks=tuple(
            replace(
                few,
                outside_causes=full.outside_causes,
                gpu_waits=full.gpu_waits,
                loading=full.loading,
                run_id=None,
            )
            for few, full in zip(kept.ranks, snapshot.ranks, strict=True)
        ),
    )


def main(*arguments: str) -> None:
    """Write each recording anew into the folder."""
    target, *files = [one for one in arguments if one != "--shown"]
    keep = shown if "--shown" in arguments else trimmed
    for file in files:
        reader = Reader(file)
        lines = b"\n".join(to_json(keep(snapshot)) for _, snapshot in reader.snapshots())
        reader.close()
        path = Path(target, f"{Path(file).stem}.jsonl.xz")
        path.write_bytes(lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(*sys.argv[1:])

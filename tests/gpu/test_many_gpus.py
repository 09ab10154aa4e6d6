"""The script for many GPUs judges as it should, and can fail: on made-up figures, without a GPU or torch."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from llmtop.model.snapshot import CommunicatorRank, Host, Rank, Snapshot, Step, StuckCommunicator
from llmtop.recording.reader_writer import Reader, Writer
from tests.gpu import check_eight, check_hang, check_ranks
from tests.gpu.eight import judging
from tests.gpu.eight.recordings import Recordings, small
from tests.gpu.eight.setting import Case, Setting


def test_its_words_are_understood(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = check_eight.options().parse_args(["ranks", "hang", "--out", "x", "--gpus", "4", "--limit", "300"])
    assert (given.parts, given.gpus, given.limit, given.backend) == (["ranks", "hang"], 4, 300.0, "nccl")
    monkeypatch.setattr(sys, "argv", ["check_eight", "rank", "--out", "x"])
    with pytest.raises(SystemExit):
        check_eight.main()
    assert "no part is called rank; there are monitor, ranks, hang, capture, export" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_every_part_has_cases_whose_names_differ(tmp_path: Path, backend: str) -> None:
    setting = Setting(8, backend, tmp_path, Recordings(tmp_path / "tar"))
    cases = [case for part in check_eight.PARTS.values() for case in part(setting)]
    assert {case.part for case in cases} == set(check_eight.PARTS)
    assert len({(case.part, case.name) for case in cases}) == len(cases)
    half = [case.name for case in cases if case.part == "ranks"][:7]
    assert {name.partition("_")[0] for name in half} == {"ddp", "fsdp2"}, "where time is short, both"
    assert len({name.partition("_")[2] for name in half}) == 7, "and each plant once"


def test_what_does_not_fit_is_left_out_and_a_case_that_breaks_costs_no_other() -> None:
    def broken(left: float) -> dict[str, Any]:
        raise RuntimeError("no GPU")

    rows: list[dict[str, Any]] = []
    cases = [
        Case("p", "long", 50.0, lambda left: {"ok": True}),
        Case("p", "broken", 1.0, broken),
        Case("p", "right", 1.0, lambda left: {"ok": left > 9}),
    ]
    found = check_eight.run(cases, time.monotonic() + 10, rows.append)
    assert found == {"left out": 1, "WRONG": 1, "right": 1}
    assert [row["ok"] for row in rows] == [None, False, True]
    assert "10 s are left, it takes 50" in rows[0]["left_out"]
    assert rows[1]["error"] == "RuntimeError: no GPU"
    assert [check_eight.line(row).split()[2] for row in rows] == ["left", "WRONG", "right"]
    assert not check_eight.run(cases[::2], time.monotonic() + 10, rows.append)["WRONG"], "left out is not wrong"


@pytest.mark.parametrize(("ranks", "loaded"), [(2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (8, [1, 4, 7])])
def test_some_gpus_are_loaded_and_one_rests(ranks: int, loaded: list[int]) -> None:
    assert judging.planted(ranks) == loaded


def _seen(begun: float, seconds: int, **of_gpu: dict[int, float | None]) -> list[dict[str, Any]]:
    """Snapshots twice a second in which each value, by GPU, stands still."""
    gpus = next(iter(of_gpu.values()))
    return [
        {"gpus": [{"index": i, "sampled_at": at, **{n: v[i] for n, v in of_gpu.items()}} for i in gpus]}
        for at in (begun + half / 2 for half in range(2 * seconds))
    ]


def _links(told: float | None, ranks: int = 4) -> dict[str, Any]:
    work = {"begun": 100.0, "ended": 110.0, "calls": 1000, "message_bytes": 1 << 28}
    right = 1000 * (1 << 28) * 2 * (ranks - 1) / ranks / 10
    value = None if told is None else told * right
    same = dict.fromkeys(range(ranks), value)
    seen = _seen(100.0, 10, nvlink_tx_bytes_per_s=same, nvlink_rx_bytes_per_s=same)
    none = _seen(90.0, 10, nvlink_tx_bytes_per_s=dict.fromkeys(same, 0.0), nvlink_rx_bytes_per_s=same)
    counters = [[{"tx": 5, "rx": 5}] * ranks, [{"tx": 5 + 10 * right, "rx": None}] * ranks]
    return judging.links(work, ranks, none + seen, counters)


def test_bytes_on_the_links_are_those_of_a_ring() -> None:
    assert judging.sent_bytes(8 * 100, 8, 3) == 3 * 1400
    assert judging.sent_bytes(100, 2, 1) == 100
    found = _links(1.05)
    assert found["ok"]
    assert found["over_expected"][3]["monitor_tx"] == pytest.approx(1.05)
    assert found["over_expected"][3]["driver_tx"] == pytest.approx(1.0)
    assert found["over_expected"][3]["driver_rx"] is None
    assert not _links(1.2)["ok"]
    assert not _links(0.85)["ok"]
    assert not _links(None)["ok"], "absent is not right"


def test_the_loaded_gpus_must_differ_from_the_others() -> None:
    work = {"begun": 100.0, "ended": 110.0, "planted": [1, 4, 7]}
    power: dict[int, float | None] = {i: 680.0 if i in (1, 4, 7) else 120.0 for i in range(8)}
    active: dict[int, float | None] = {i: 96.0 if i in (1, 4, 7) else 0.0 for i in range(8)}
    util: dict[int, float | None] = dict.fromkeys(range(8), 100.0)

    def told(**other: dict[int, float | None]) -> bool:
        values = {"power_watts": power, "sm_active_pct": active, "util_pct": util} | other
        return bool(judging.load(work, 8, _seen(100.0, 10, **values))["ok"])

    assert told()
    assert not told(sm_active_pct={**active, 2: 96.0}), "one that rests reads as loaded"
    assert not told(sm_active_pct={**active, 4: 30.0})
    assert not told(power_watts={**power, 7: 150.0})
    assert not told(power_watts={**power, 7: None})


def test_rounds_and_screens() -> None:
    assert judging.rounds({"idle": [0.004] * 40})["rounds"]["idle"]["p95_ms"] == pytest.approx(4.0)
    assert judging.rounds({"idle": [0.004] * 95 + [0.9] * 5})["ok"], "one of twenty may be slow"
    assert not judging.rounds({"idle": [0.004] * 94 + [0.9] * 6})["ok"]
    assert not judging.rounds({})["ok"]
    assert judging.cost({"llmtop": 1.2, "nvitop": 1.0})["ok"] is True
    assert judging.cost({"llmtop": 1.3, "nvitop": 1.0})["ok"] is False
    assert judging.cost({"llmtop": 1.3, "nvitop": None})["ok"] is None, "nothing to compare with"


def _stepping(lengths: list[float], rank: int = 0) -> list[dict[str, Any]]:
    """Snapshots, a step each, of a rank whose steps are that long; the first begins at 1000."""
    at, found, before = 1000.0, [], None
    for index, length in enumerate([*lengths, 0.0]):
        step = {"index": index, "started_at": at, "interval_seconds": before}
        found.append({"ranks": [{"rank": rank, "new_steps": [step]}]})
        at, before = at + length, length
    return found


def test_a_pause_is_that_of_the_step_in_which_it_was() -> None:
    lengths = [0.1] * 100 + [0.7] + [0.1] * 100
    steps = judging.intervals(_stepping(lengths) + _stepping([0.1] * 190 + [0.102] * 30, 1))
    found = judging.pauses(steps, 1009.0, 1012.0, 3.0)
    assert found["ranks"][0]["paused_ms"] == pytest.approx(600, abs=0.1)
    assert found["ranks"][0]["changed_pct"] == pytest.approx(0, abs=0.1)
    assert found["ranks"][1]["paused_ms"] == pytest.approx(0, abs=0.1)
    assert found["ok"]
    slower = judging.intervals(_stepping([0.1] * 120 + [0.11] * 100))
    assert not judging.pauses(slower, 1009.0, 1012.0, 0.0)["ok"], "steps stay longer by 10 %"
    assert not judging.pauses({}, 1009.0, 1012.0, 0.0)["ok"]


def _captured(**other: Any) -> dict[str, Any]:
    device = {"device": 0, "steps": 5, "kernels": 900, "nccl_pct": 20.0, "nccl_exposed_pct": 9.0}
    info = {
        "steps": 8, "ranks": [1, 0, 2, 3], "at_step": 500, "first_step": 500, "paused_seconds": [],
        "stage_seconds": {}, "files": [], "notes": [],
    }  # fmt: skip
    report = {
        "devices": [{**device, "rank": rank} for rank in range(4)],
        "findings": [{"id": "straggler", "evidence": {"culprit_rank": 3}}],
        "verdict": "communication_bound",
        "steps": {"count": other.pop("judged", 5)},
    }
    for name, value in other.items():
        (info if name in info else report)[name] = value
    return judging.capture({"capture": info, "report": report, "bytes": 1}, 4, 5, 3, True)


def test_a_capture_is_whole_and_names_the_slow_rank() -> None:
    assert _captured()["ok"]
    assert _captured()["exposed_pct"] == dict.fromkeys(range(4), 9.0)
    assert not _captured(ranks=[0, 1, 2])["ok"]
    assert not _captured(steps=4)["ok"]
    assert not _captured(judged=4)["ok"], "recorded, but not whole"
    assert not _captured(first_step=501)["ok"]
    assert not _captured(findings=[])["ok"]
    assert not _captured(findings=[{"id": "straggler", "evidence": {"culprit_rank": 0}}])["ok"]
    lacking = [{"rank": 0, "steps": 5, "kernels": 9}, {"rank": 1, "steps": 5, "kernels": 0}]
    assert not _captured(devices=lacking)["ok"]


def _blocks(on: float) -> dict[str, Any]:
    taken, stamps, at = [], [], 0.0
    for i in range(9):
        name = "on" if i % 2 else "off"
        taken.append((name, at, at + 6.0))
        length = 0.02 * (on if name == "on" else 1.0)
        stamps += [at + length * k for k in range(int(6 / length))]
        at += 7.0
    return judging.blocks(stamps, taken)


def test_what_an_exporter_adds_is_told_by_blocks_in_turns() -> None:
    series = {"gpus": 8, "ranks": 8, "all": 900}
    assert _blocks(1.05)["added_pct_median"] == pytest.approx(5.0)
    assert judging.export(_blocks(1.004), 0.4, series, 8)["ok"]
    assert not judging.export(_blocks(1.05), 0.4, series, 8)["ok"]
    assert not judging.export(_blocks(1.0), 2.0, series, 8)["ok"]
    assert not judging.export(_blocks(1.0), 0.4, series | {"ranks": 7}, 8)["ok"]
    assert judging.export(judging.blocks([], [("on", 0.0, 6.0)]), 0.4, series, 8)["ok"] is None
    noisy = _blocks(1.0) | {"usual_spread_pct": 20.0}
    assert judging.export(noisy, 0.4, series, 8)["ok"] is None
    assert judging.export(noisy, 2.0, series, 8)["ok"] is False


def _hang(rank: int, collective: int = 40, seconds: float = 6.0, ras: int = 39) -> dict[str, Any]:
    evidence = {
        "rank": rank, "collective": collective, "last_called": collective - 1, "process_group": "0 default_pg",
        "operation": "nccl:all_reduce",
    }  # fmt: skip
    recorder = {str(r): {"0 default_pg": {"enqueued": 39 if r == 7 else 40}} for r in range(8)}
    called = {str(r): {"AllReduce": ras if r == 7 else 40} for r in range(8)}
    counts = {"flight_recorder": recorder, "ras": [{"size": 8, "called": called, "missing": []}]}
    found = {"attached": True, "alert": {"evidence": evidence}, "seconds": seconds, "counts": counts}
    return check_hang.judge(found, 8)


def test_a_hang_is_named_with_its_rank_group_and_collective_in_time() -> None:
    assert _hang(7)["ok"]
    assert _hang(7)["agree"] is True
    assert _hang(7)["behind"] == {"flight_recorder": {"7": 39}, "ras": {"7": 39}}
    assert _hang(7, ras=38)["agree"] is False
    assert not _hang(6)["ok"]
    assert not _hang(7, collective=41)["ok"]
    assert not _hang(7, seconds=11.0)["ok"]
    assert not check_hang.judge({"attached": True, "alert": None}, 8)["ok"]


def _straggling(accused: int | None, at_step: int = 80) -> dict[str, Any]:
    ranks = [{"rank": r, "pid": 100 + r, "step": at_step, "state": "running"} for r in range(8)]
    alert = {"id": "straggler", "pid": 100 + (accused or 0), "summary": "", "evidence": {"rank": accused}}
    snapshot = {"ranks": ranks, "alerts": [] if accused is None else [alert]}
    return check_ranks.judge("ddp", "sleep", {"planted_at": 60}, [snapshot], 8)


def test_of_eight_ranks_the_last_is_the_one_to_accuse() -> None:
    right = _straggling(7)
    assert right["ok"]
    assert right["in_time"]
    assert not _straggling(1)["ok"]
    assert not _straggling(None)["ok"]
    assert not _straggling(7, at_step=95)["in_time"]


def _snapshot(at: float) -> Snapshot:
    steps = tuple(Step(index=i, started_at=at + i, seconds=0.1) for i in range(10))
    behind = (CommunicatorRank(rank=1, host="10.1.2.3", pid=4),)
    return Snapshot(
        time=at,
        host=Host(name="somebody", user="somebody"),
        ranks=(Rank(pid=4, host="somebody", rank=1, command="python /home/somebody/secret.py", new_steps=steps),),
        stuck_communicators=(StuckCommunicator(id="0x1", size=2, waiting_count=1, behind=behind),),
    )


def test_what_is_kept_is_small_and_nobodys(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.llmtop", host="somebody")
    for at in range(30):
        writer.write(_snapshot(1000.0 + at))
    writer.close()
    recordings = Recordings(tmp_path / "all.tar")
    told = recordings.add("one", tmp_path / "a.llmtop")
    assert recordings.add("two", tmp_path / "missing")["recording"] is None
    assert told["recording_snapshots"] == [30, 30]
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert tar.getnames() == ["one.llmtop"]
        member = tar.extractfile("one.llmtop")
        assert member is not None
        (tmp_path / "one.llmtop").write_bytes(member.read())
    reader = Reader(tmp_path / "one.llmtop")
    kept = [snapshot for _, snapshot in reader.snapshots()]
    reader.close()
    words = json.dumps([str(one) for one in kept])
    assert len(kept) == 30
    assert all(word not in words for word in ("somebody", "secret", "10.1.2.3"))
    count, data = small(kept, 1500)
    assert len(data) <= 1500
    assert 0 < count < 30, "the first go"

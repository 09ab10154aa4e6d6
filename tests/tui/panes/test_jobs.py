"""Jobs on the screen: who trains with whom, what they do together, and whose the GPUs are."""

from __future__ import annotations

from llmtop.model import jobs
from llmtop.model.snapshot import Alert, Host, Process, Rank, Snapshot
from tests.support.snapshots import gpu, rank, snapshot
from tests.tui.driving import Held, running, text
from tui.paint import alert_style
from tui.state.view import View

LOOKED_AT = 0.3


def ranks_of(job: str, size: int, here: int, pid: int, at: float, **fields: object) -> list[Rank]:
    told = {
        "job": job,
        "world_size": size,
        "tokens_per_s": 1000.0,
        "steps_per_s": 2.0,
        "attached_at": at,
        **fields,
    }
    return [rank(pid + place, rank=place, step=10 + place, **told) for place in range(here)]


def of(*ranks: Rank, **fields: object) -> Snapshot:
    return snapshot(ranks=ranks, jobs=jobs.job_totals(ranks), **fields)


SPREAD = ranks_of("train_gpt.py · slurm 4711", 8, 2, 200, 20.0)
THREE = of(
    rank(100, job="serve.py · pid 100", attached_at=30.0, kind="request", steps_per_s=5.0),
    *SPREAD,
    *ranks_of("train_gpt.py · :29500", 4, 4, 300, 10.0),
)


async def test_each_of_several_jobs_has_a_line_with_what_its_ranks_do_together() -> None:
    async with running(Held(THREE), (160, 50)) as (app, pilot):
        await pilot.press("r")
        await pilot.pause(LOOKED_AT)
        shown = [line.strip(" │") for line in text(app).splitlines()]
    starts = ["train_gpt.py · :29500 · 4 ranks · 4.00k tokens/s · 2 steps/s"]
    starts += ["train_gpt.py · slurm 4711 · 2 of 8 ranks seen · 2.00k tokens/s · 2 steps/s"]
    starts += ["serve.py · pid 100 · 1 rank · 5 requests/s"]
    places = [next(i for i, line in enumerate(shown) if start in line) for start in starts]
    assert places[1] - places[0] == 5, "four ranks below it, then the next job"
    assert places[2] - places[1] == 3
    assert any("ranks · 7 · 3 jobs" in line for line in shown)


async def test_the_key_for_jobs_goes_round_them_and_the_table_says_which_ranks_are_others() -> None:
    async with running(Held(THREE), (200, 50)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        seen = []
        for _ in range(4):
            seen.append(text(app))
            await pilot.press("J")
    assert "job 1 of 3 (J): train_gpt.py · :29500, 4 ranks" in seen[0]
    assert "job 2 of 3 (J): train_gpt.py · slurm 4711, 2 of 8 ranks seen" in seen[1]
    assert "job 3 of 3 (J): serve.py · pid 100, 1 rank" in seen[2]
    assert seen[3] == seen[0]
    assert [shown.count("another job: ") for shown in seen] == [3, 5, 6, 3]
    async with running(Held(of(*SPREAD)), (200, 50)) as (app, pilot):
        await pilot.press("J")
        await pilot.pause(LOOKED_AT)
        assert "another job" not in text(app)


async def test_one_job_stands_in_the_title_of_the_table() -> None:
    async with running(Held(of(*SPREAD)), (160, 50)) as (app, pilot):
        await pilot.press("r")
        await pilot.pause(LOOKED_AT)
        assert "2 of 8 ranks seen · 2.00k tokens/s · 2 steps/s" in text(app)


async def test_a_table_with_too_little_room_keeps_the_jobs_and_the_odd_rank() -> None:
    ranks = [*ranks_of("a.py · :1", 8, 8, 100, 1.0), *ranks_of("b.py · :2", 8, 8, 200, 2.0)]
    ranks[13] = rank(205, rank=5, job="b.py · :2", world_size=8, state="stalled", attached_at=2.0)
    async with running(Held(of(*ranks)), (120, 24)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        shown = text(app)
        assert "a.py · :1" in shown
        assert "another job: b.py :2" in shown
        assert "STALLED" in shown
        await pilot.press("r")
        for _ in range(20):
            await pilot.press("down")
        await pilot.pause(LOOKED_AT)
        assert "207" in text(app), "the last line of the table can be scrolled to"


def test_totals_leave_out_who_has_ended_and_are_not_made_up() -> None:
    ended = rank(9, rank=0, job="a.py · :1", world_size=2, state="gone", tokens_per_s=None, attached_at=0.5)
    living = ranks_of("a.py · :1", 2, 2, 10, 1.0)
    (job,) = jobs.job_totals([ended, *living])
    assert (job.ranks_seen, job.ranks, job.pids, job.state) == (2, (0, 1), (10, 11), "running")
    assert (job.tokens_per_s, job.steps_per_s, job.step) == (2000.0, 2.0, 10)
    (job,) = jobs.job_totals([living[0], rank(11, rank=1, job="a.py · :1", world_size=2)])
    assert (job.tokens_per_s, job.steps_per_s, job.step) == (None, None, None), "one of two says nothing"
    (job,) = jobs.job_totals([ended])
    assert (job.state, job.ranks_seen, job.pids) == ("gone", 0, (9,))
    assert jobs.job_totals([rank(1)]) == (), "the rank of the shipped demo has no job's name"


def test_an_alert_says_which_job_s_rank_it_means() -> None:
    alert = Alert(id="stalled", severity="critical", pid=300, since=0.0, summary="")
    assert alert_style.subject(alert, THREE) == "rank 0 of train_gpt.py · :29500"
    one = snapshot(ranks=THREE.ranks, jobs=THREE.jobs[:1])
    assert alert_style.subject(alert, one) == "rank 0"


def test_ranks_come_job_by_job() -> None:
    view = View(snapshot=THREE)
    assert [one.pid for one in view.ranks()] == [300, 301, 302, 303, 200, 201, 100]
    assert next(job.name for job in view.jobs()) == "train_gpt.py · :29500"


async def test_what_llmtop_costs_stands_beside_the_step() -> None:
    costs = rank(1, step=5, step_seconds_mean=0.06, overhead_seconds=12e-6, job="a.py · pid 1")
    async with running(Held(of(costs)), (160, 30)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        assert "llmtop costs 12.0 µs per step (0.02 %)" in text(app)
    async with running(Held(of(rank(1, step=5, step_seconds_mean=0.06))), (160, 30)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        assert "costs" not in text(app), "it is not known yet"


async def test_gpus_and_processes_of_other_users_are_said_to_be_theirs() -> None:
    theirs, shared, ours = gpu(0), gpu(1), gpu(2)
    processes = (
        Process(pid=1, gpu_uuid=theirs.uuid, user="bob", command="python /x/serve.py"),
        Process(pid=2, gpu_uuid=shared.uuid, user="ann", command="python mine.py"),
        Process(pid=3, gpu_uuid=shared.uuid, user="bob", command="python theirs.py"),
        Process(pid=4, gpu_uuid=ours.uuid, user="ann", command="python other.py"),
    )
    host = Host(name="node", user="ann")
    now = Snapshot(time=1.0, host=host, gpus=(theirs, shared, ours), processes=processes)
    async with running(Held(now), (160, 50)) as (app, pilot):
        await pilot.pause(LOOKED_AT)
        shown = text(app)
        assert "used by bob alone · serve.py" in shown
        assert "used by bob too" in shown
        assert "not attached · other.py" in shown
        assert shown.count("used by") == 2
        await pilot.press("p")
        await pilot.pause(LOOKED_AT)
        assert "bob" in text(app)

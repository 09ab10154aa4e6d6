"""Trainings in threads and in tasks of an event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.odd_model import MODEL, PARTS
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch


def test_a_second_thread_that_trains_is_left_alone_and_said(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
turn = [threading.Semaphore(1), threading.Semaphore(0)]
def run(place):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(ids.repeat(5, 1)), batch_size=4):
        turn[place].acquire()
        net(batch).backward()
        optimizer.step()
        turn[1 - place].release()
    both_done.wait()
both_done = threading.Barrier(2)
threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    )
    assert len(found["steps"]) == 49
    assert all(step.tokens == 48 and step.count("forward") == 1 for step in found["steps"])
    assert found["left_out"] == {"backward passes of a second thread that trains": 50}


def test_a_thread_takes_over_from_one_that_has_ended_or_idles(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
train(4)
for _ in range(2):
    thread = threading.Thread(target=train, args=(40,))
    thread.start()
    thread.join()
""",
    )
    # 16 of the first thread's are waited for the main thread's, and the first of its own opens no step
    assert len(found["steps"]) >= 3 + 40 - 18 + 38
    assert all(step.count("backward") <= 1 for step in found["steps"])


def test_a_training_in_an_event_loop_is_seen_as_outside(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import asyncio
from llmtop.instrument import auto
from llmtop.instrument.auto.training import transfers
transfers.time_copies_to("meta", auto.install())
async def cell():
    for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
        batch.to("meta")
        net(batch).backward()
        optimizer.step()
        await asyncio.sleep(0)
async def notebook():
    await cell()
    await asyncio.create_task(cell())
asyncio.run(notebook())
""",
    )
    assert len(found["steps"]) == 19
    assert all(set(step.phases) == {"dataload", "h2d", *PARTS} for step in found["steps"])

"""Checkpoints that a process keeps for a monitor that comes later."""

from __future__ import annotations

from llmtop.instrument.record.saved_checkpoints import Saved, SavedCheckpoints


def _saved(step: int) -> Saved:
    return Saved(step, 10 * step, 5, 2, f"/c/{step}", "torch.save")


def test_the_last_16_are_kept_and_each_raises_the_version_by_one() -> None:
    kept = SavedCheckpoints()
    assert (kept.version, kept.read()) == (0, [])
    for step in range(20):
        kept.add(_saved(step))
        assert kept.version == step + 1
    assert kept.read() == [_saved(step) for step in range(4, 20)]


def test_each_wakes_the_writer_of_the_run_after_it_is_kept() -> None:
    kept, seen = SavedCheckpoints(), []
    kept.wake = lambda: seen.append(kept.read()[-1].step)
    kept.add(_saved(7))
    kept.add(_saved(8))
    assert seen == [7, 8]

"""Output of torchrun as a terminal shows it: tmux itself breaks the lines here."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.postmortem.answer.decide import find_culprits
from llmtop.postmortem.wrapped_lines import numbered_lines, terminal_width
from tests.support.terminal import Terminal

_PACKAGES = "/opt/train/env/lib/python3.11/site-packages/torch"
_LOG = f"""\
step 40: loss 5.883
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train_gpt.py", line 130, in train
[rank0]:     loss.backward()
[rank0]:   File "{_PACKAGES}/autograd/__init__.py", line 395, in backward
[rank0]:     _engine_run_backward(
[rank0]:   File "{_PACKAGES}/autograd/graph.py", line 979, in _engine_run_backward
[rank0]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error \
[127.0.0.1]:35760: Connection reset by peer. This is typically caused by a remote worker hanging.
W1127 14:39:16.934000 20405 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 20408 closing \
signal SIGTERM
E1127 14:39:16.966000 20405 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) \
local_rank: 1 (pid: 20409) of binary: /home/user/env/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
/home/user/train_gpt.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_14:39:16
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 20408)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 20408
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_14:39:16
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 20409)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 20409
=======================================================
"""


@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("columns", [60, 80, 100, 130])
def test_the_launchers_root_cause_in_a_pane_of_tmux(tmp_path: Path, columns: int, is_padded: bool) -> None:
    saved = tmp_path / "job.log"
    saved.write_text(_LOG)
    with Terminal(["sh", "-c", f"cat {saved}; echo END; sleep 100"], (columns, 100)) as terminal:
        terminal.shows("END")
        pane = terminal.text()
    lines = pane.splitlines()
    assert max(map(len, lines)) == columns
    saved.write_text("\n".join(lines if is_padded else [line.rstrip() for line in lines]))
    assert terminal_width(saved.read_bytes()) == columns
    report = find_culprits([saved])
    assert [(one.rank, one.failure) for one in report.culprits] == [(1, "killed")]
    assert report.victims == (0,)


def test_a_root_cause_by_a_signal_wins_over_the_exception_of_another_rank(tmp_path: Path) -> None:
    """Also where no text shows that the exception is that of a lost peer."""
    saved = tmp_path / "job.log"
    saved.write_text(_LOG.replace("Connection reset by peer. This is typically caused by", "and so on"))
    assert [(one.rank, one.failure) for one in find_culprits([saved]).culprits] == [(1, "killed")]


def test_lines_that_no_terminal_has_broken_stay(tmp_path: Path) -> None:
    steps = "".join(f"step {number:05d}: loss {number % 7}.123, {'x' * 60}\n" for number in range(500))
    for text in (_LOG, steps, steps + _LOG):
        assert terminal_width(text.encode()) == 0
        lines = [raw for _, raw, _ in numbered_lines(text.encode(), 0)]
        assert b"".join(lines).decode() == text

"""Runs: what every attached training leaves on the disk of its node, and how it is found again.

The contract between the writer in the training (`llmtop/instrument/run_log`), the monitors of the node, and
readers:

**The folder** (`folder.runs_folder`): `$LLMTOP_RUNS`; else `$XDG_STATE_HOME/llmtop/runs` (`~/.local/state` where
that is unset) if that is on a disk of this node; else `$TMPDIR/llmtop-runs-<uid>`. It holds a folder for each
run, named `folder.RunKey.folder_name`: the same for all ranks, restarts and nodes of a run that has an id
(torchrun's, SLURM's, `LLMTOP_RUN_NAME`), else of one launcher process or of one process alone. All files have mode
0600.

**The files** of a run, `folder.FileName`: `<rank>.<unix ms>.<pid>.<8 hex>` and an ending; "x" for a process that
is no rank. One process, and so one restart of one rank, has

- `.run`: from its start to its end. `Start`, then a `Minute` each minute in which steps ended, `State` (the sums
  so far) every tenth minute, `KeptSteps` with each of the first ten steps and of those that took unusually long
  or held a checkpoint or an evaluation, `Sign` of life while no step ends, `End` at an orderly end.
- `.last0` and `.last1`: the last two to four minutes in full, written in turn. Each begins with `Start` and
  `State`; then each second that has something new: `RecentSteps` with every step (number, start, duration,
  interval, phases), `Values` that were logged, `Sign`, and `Stacks`
  while the running step takes over three times the median. A process that is killed loses at most its last second.
- `.node`, one for each monitor of the node that had its turn: `Watched` at its begin, each minute and at its end,
  `GpuMinute`, `AlertSeen`, `CaptureSeen`. Times are the node's; `node_notes` reads them.

**The form**: gzip members as in a recording (`llmtop/recording/members.py`; `zcat` shows them), in each some JSON
objects, one a line, tagged by `type` (`records`). A member that was cut or damaged is passed over. A reader
passes over types and fields that it does not know, so that both are added freely; `Start.format` grows only when
an older reader would misunderstand.

**Readers**: `store.list_runs` gives each `Run` with its `Attempt`s (restarts) and their `RankProcess`es, each
with how it ended; `RankProcess.minutes`, `.kept_steps` and `.last_steps` read its files."""

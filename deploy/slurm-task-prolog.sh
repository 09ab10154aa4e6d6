#!/bin/sh
# TaskProlog of slurm.conf: one `llmtop export` on each node of a job, as the job's user, that ends with it.
#
#   TaskProlog=/etc/slurm/llmtop-task-prolog.sh
#
# Slurm obeys what this prints, and waits until nobody holds its output: the exporter gets none of it. Whatever goes wrong
# here, the task starts. Tried with Slurm 22.05.
# Settings, in the job's environment or here:
: "${LLMTOP_EXPORT:=llmtop export}"     # the command; the extra cluster must be installed
: "${LLMTOP_EXPORT_BIND:=127.0.0.1}"    # 0.0.0.0: whoever reaches the port can read it
: "${LLMTOP_EXPORT_PORT:=9401}"
: "${LLMTOP_EXPORT_SD:=}"               # a shared folder that Prometheus reads by file_sd_configs
: "${LLMTOP_EXPORT_LOG:=/dev/null}"

# One a node: the first task of it. A later step's finds the port taken, and ends.
[ "${SLURM_LOCALID:-0}" = 0 ] || exit 0
[ "${SLURM_STEP_ID:-}" != 4294967290 ] || exit 0  # the interactive step of salloc

set -- --bind "$LLMTOP_EXPORT_BIND" --port "$LLMTOP_EXPORT_PORT"
if [ -n "$LLMTOP_EXPORT_SD" ]; then
  set -- "$@" --file-sd "$LLMTOP_EXPORT_SD/llmtop-${SLURMD_NODENAME:-$(uname -n)}-$LLMTOP_EXPORT_PORT.json"
fi
# Slurm kills this script's process group when it ends: it must not end before the exporter has a session of its own,
# which is when it has let go of the output that is read here. With proctrack/cgroup Slurm ends the exporter with the
# step; elsewhere it is ended once slurmstepd, which runs this, is gone.
# shellcheck disable=SC2086 # a command with its arguments
# shellcheck disable=SC2034
started=$(setsid sh -c '
  log=$1 stepd=$2; shift 2
  exec >> "$log" 2>&1 < /dev/null
  "$@" & exporter=$!
  trap "kill $exporter" TERM INT HUP
  while [ -d "/proc/$stepd" ] && [ -d "/proc/$exporter" ]; do sleep 2; done
  kill "$exporter" 2> /dev/null
' llmtop-export "$LLMTOP_EXPORT_LOG" "$PPID" $LLMTOP_EXPORT "$@" 2> /dev/null &)
exit 0

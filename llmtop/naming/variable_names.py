"""Environment variables that several modules read or set.

The modules in `llmtop/launch/inject` have their own copies: they run before a training can import llmtop.
"""

from __future__ import annotations

OFF = "LLMTOP_OFF"
"""Set: a training is not instrumented."""
QUIET = "LLMTOP_QUIET"
"""Set: llmtop prints nothing in a training."""
RUNTIME_DIR = "LLMTOP_DIR"
"""Where sockets are, in place of the usual folder."""
RUNS = "LLMTOP_RUNS"
"""Where runs are kept, in place of the usual folder."""
RUN_LOG = "LLMTOP_RUN_LOG"
"""0: this training keeps no run."""
RUN_NAME = "LLMTOP_RUN_NAME"
"""Name of the run, where the launcher gives none or the user wants another."""
RUN_SUMMARY = "LLMTOP_RUN_SUMMARY"
"""Set by `llmtop run`: "short", "long", "off" or a file, for the summary at the end."""
BENCH = "LLMTOP_BENCH"
"""Set by `llmtop bench`: the training is a run of it, and is ended once it is measured."""
MEMORY_HISTORY = "LLMTOP_MEMORY_HISTORY"
"""Set by ``llmtop run --memory-history``: torch's allocator records the stack of each allocation."""

NVTX_INJECTION = "NVTX_INJECTION64_PATH"
"""The library that NVTX hands its calls to (github.com/NVIDIA/NVTX, nvtxInit.h)."""
CUDA_INJECTION = "CUDA_INJECTION64_PATH"
"""A tool that the CUDA driver loads."""
NSYS_SESSION = "NSYS_PROFILING_SESSION_ID"
PROFILER_PREFIXES = ("LD_PRELOAD", "NSYS_", "QUADD_", CUDA_INJECTION, NVTX_INJECTION)
"""Variables, or beginnings of their names, that profilers set for the programs that they start."""

KINETO_DAEMON = "KINETO_USE_DAEMON"
KINETO_CONFIG = "KINETO_CONFIG"
KINETO_SOCKET_DIR = "KINETO_IPC_SOCKET_DIR"

CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
MASTER_PORT = "MASTER_PORT"
WORLD_SIZE = "WORLD_SIZE"
RANK = "RANK"
TORCHELASTIC_RUN = "TORCHELASTIC_RUN_ID"

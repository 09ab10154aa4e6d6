"""The engine that has the kernel look: perf, where it is allowed."""

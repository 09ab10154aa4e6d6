"""The engine that samples by the kernel: perf, where it is permitted."""

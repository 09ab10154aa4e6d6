"""XLA profiler output as columns of the trace model."""

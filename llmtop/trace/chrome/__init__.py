"""Chrome trace events as columns of the trace model."""

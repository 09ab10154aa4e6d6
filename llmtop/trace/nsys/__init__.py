"""nsys SQLite exports as columns of the trace model."""

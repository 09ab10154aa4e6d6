"""The steps of a trace: found by ranges or inferred, their phases, and each device's timeline."""

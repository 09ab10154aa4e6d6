"""llmtop runs: what trainings have left."""

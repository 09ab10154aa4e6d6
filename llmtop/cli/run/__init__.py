"""llmtop run."""

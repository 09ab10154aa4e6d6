"""llmtop doctor."""

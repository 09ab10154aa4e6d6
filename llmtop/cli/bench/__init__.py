"""llmtop bench."""

"""llmtop cluster and llmtop export."""

"""llmtop capture and llmtop captures."""

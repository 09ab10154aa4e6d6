"""llmtop report, compare and kernel."""

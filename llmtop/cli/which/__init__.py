"""llmtop which: the first tool for a symptom."""

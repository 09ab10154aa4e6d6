"""llmtop live, record, replay and demo."""

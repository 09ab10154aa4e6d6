"""llmtop postmortem."""

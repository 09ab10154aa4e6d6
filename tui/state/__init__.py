"""State of the screen besides the newest snapshot: history, alerts, selection."""

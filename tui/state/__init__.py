"""What the screen knows besides the newest snapshot: history, alerts, selection."""

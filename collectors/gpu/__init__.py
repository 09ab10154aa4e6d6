"""Parts that the collectors of all GPU vendors share: bounds of values, selection of GPUs, poll schedules."""

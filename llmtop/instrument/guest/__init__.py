"""How llmtop behaves inside somebody else's process: what it meets there, its threads, its descriptors, its end."""

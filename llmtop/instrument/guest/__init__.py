"""How llmtop behaves in somebody else's process: what it meets there, its threads, its descriptors, its end."""

"""llmtop schema: what --json prints, as JSON Schema."""

"""llmtop mcp: a server for coding agents."""

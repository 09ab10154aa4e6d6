"""Every speed that llmtop promises, as a ratio against a peer or a primitive in the same run."""

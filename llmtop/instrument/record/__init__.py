"""The hot path: steps and phases as stamps in memory."""

"""Runs on disk (`llmtop/runs`) as snapshots: to be replayed, and for rules to judge."""

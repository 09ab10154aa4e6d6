"""Prometheus output: a pipeline stage, as the recorder is, and the servers of its page."""

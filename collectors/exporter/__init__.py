"""What passes the pipeline, for Prometheus: a stage as the recorder is, and the ways in which it is fetched."""

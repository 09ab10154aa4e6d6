"""The benchmark protocol: warm up, measure a steady window, several runs, artifacts of each."""

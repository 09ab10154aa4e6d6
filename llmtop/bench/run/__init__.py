"""One run of a benchmarked command: start, measured window, end, figures and files."""

"""The operating system: /proc, input files, clocks, crashes, BLAS threads."""

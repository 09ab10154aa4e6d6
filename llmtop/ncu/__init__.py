"""Kernels under NVIDIA Nsight Compute: the ncu command for a hot one, its run, and what its counters say.

`command.py` makes the command, `run.py` runs it where that was asked for, `read.py` reads what it wrote (in a
process of its own: extract.py), and `judge.py` says what limits the kernel.
"""

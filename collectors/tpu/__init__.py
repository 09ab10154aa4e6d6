"""Google's TPUs through tpu-info and libtpu, in a process of their own as NVIDIA's GPUs are.

Untried on hardware: made and tested on tpu-info itself over a stand-in for libtpu's service and for the kernel's
files.
"""

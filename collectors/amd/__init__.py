"""AMD's GPUs through amdsmi, in a process of their own as NVIDIA's (collectors/driver/child.py).

Untried on hardware: made and tested on AMD's own binding over a stand-in for its library.
"""

"""The parts of check_eight.py: what is run on several GPUs, and how it is judged."""

"""NVIDIA's GPUs through NVML and GPM, asked in a process of their own."""

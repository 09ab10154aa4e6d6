"""Windows of trainings on torch_xla, by the profiler server that their script has started."""

"""The process that calls the GPU driver's library, and the monitor's side of it."""

"""What every capture engine builds on: the engine's interface, the job, the folder, the lock."""

"""Base of all capture engines: the engine's interface, the job, the folder, the lock."""

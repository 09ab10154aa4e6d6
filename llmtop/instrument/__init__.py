"""Inside the training process: what it records and how it is sent."""

"""Facts of a job -> the answer, and its forms."""

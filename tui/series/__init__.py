"""Time series of the last two hours in fixed memory."""

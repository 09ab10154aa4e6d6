"""How much of a step a rank may be late before it is called a straggler."""

LATE_STEP_PCT = (10.0, 7.0)
"""Per cent of the step, where nothing else is configured: to raise, and to stay raised."""

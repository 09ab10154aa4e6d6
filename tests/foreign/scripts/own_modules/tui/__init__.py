"""Another."""

raise_on = None

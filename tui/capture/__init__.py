"""A capture from the screen: its form, and the one that is under way."""

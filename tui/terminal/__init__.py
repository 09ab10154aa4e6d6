"""The terminal: driver, keyboard, and its restoration however the program ends."""

"""Pictures of the screen, drawn from made-up scenes (`python -m screenshots.draw`)."""

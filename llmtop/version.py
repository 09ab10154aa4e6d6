"""The version of llmtop: here alone. The wheel takes it from this line too."""

__version__ = "0.1.0"

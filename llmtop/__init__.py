"""The whole public API of a training script. Importing this loads nothing heavy."""

__version__ = "0.1.0"

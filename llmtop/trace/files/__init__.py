"""Trace from a path: file kinds, compression, loaders, several ranks merged."""

"""From a path to a trace: file kinds, compression, loaders, several ranks merged."""

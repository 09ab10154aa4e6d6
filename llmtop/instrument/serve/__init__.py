"""The socket of a training: who may ask, what is said."""

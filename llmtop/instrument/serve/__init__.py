"""The socket of a training: permissions, requests and messages."""

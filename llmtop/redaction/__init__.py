"""Secrets and random words, removed from what is stored."""

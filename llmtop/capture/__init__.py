"""Captures: one engine a file, and the window that drives any of them."""

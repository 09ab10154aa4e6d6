"""Recordings: files of snapshots."""

"""Trainings that wait for their data for a known reason."""

"""A training's steps over minutes and hours: whole steps, changes, rare steps."""

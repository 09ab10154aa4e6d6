"""Painters (functions that return rows of cells), and the widget that shows rows."""

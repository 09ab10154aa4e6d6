"""Cells: colours, glyphs, rows, strips and charts that panes are painted with."""

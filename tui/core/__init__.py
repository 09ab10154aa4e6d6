"""Parts that all screens share: keys, layout, columns, canvas, the base app."""

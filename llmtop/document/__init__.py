"""A document: what a report says, free of width and syntax; and its writers for text, Markdown and HTML."""

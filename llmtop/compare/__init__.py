"""Two reports side by side: what changed, what is noise, and how it is rendered."""

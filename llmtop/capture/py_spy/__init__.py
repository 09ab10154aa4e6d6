"""The engine that looks at Python stacks from outside."""

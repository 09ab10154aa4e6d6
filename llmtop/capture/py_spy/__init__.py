"""The engine that samples Python stacks from outside."""

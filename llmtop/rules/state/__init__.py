"""State of the rules from snapshot to snapshot."""

"""What the rules remember from snapshot to snapshot."""

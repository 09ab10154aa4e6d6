"""What the numbers and the capture say."""

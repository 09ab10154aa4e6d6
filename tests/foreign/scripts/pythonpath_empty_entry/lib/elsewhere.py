"""Found by the other entry."""

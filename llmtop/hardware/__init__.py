"""Facts about GPU models, their error codes and their clock-event reasons."""

"""Cost of loading: what the time of a data loader's threads goes into."""

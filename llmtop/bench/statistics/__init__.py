"""Statistics of bench runs: block lengths, intervals, Student's t, decisions."""

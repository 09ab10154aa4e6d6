"""Device work: kernels, operators, matrix products, collectives and copies."""

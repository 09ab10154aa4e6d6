"""What a device did: kernels, operators, matrix products, collectives and copies."""

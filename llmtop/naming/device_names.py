"""Names of devices that are no GPU, as captures of XLA give them."""

ON_CPU = "CPU (XLA's operations)"
"""The name of a device that is none: what XLA ran on the host's threads."""
TPU = "TPU"
"""How the name of one of Google's devices begins, and what it is called where the file does not say its kind."""

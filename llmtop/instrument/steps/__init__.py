"""Steps and phases as data: the phase tree and the ring of finished steps."""

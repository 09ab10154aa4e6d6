"""The pane of a whole cluster: an app of its own, beside the one of a machine."""

"""A server that cannot start."""

raise ImportError("appworld is broken")

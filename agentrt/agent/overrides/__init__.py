"""Methods that a class of agents overrides, each kind in a file: how it becomes the core of a chain."""

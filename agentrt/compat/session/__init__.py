"""Sessions: the states of modules, kept under a name."""

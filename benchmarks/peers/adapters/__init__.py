"""One file per peer; each imports its peer and the shared script, and nothing else of this project."""

"""The commands that a client starts, to talk to them over standard input and output."""

"""Sandboxes: where the commands of a workspace run, and what they can reach from there."""

"""The usage of model calls, and its cost."""

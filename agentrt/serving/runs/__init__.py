"""Recorded runs over HTTP: found, read, followed, forked, replayed and deleted."""

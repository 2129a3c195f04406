"""Runs that inject faults at every place where a conversation waits."""

"""Turns a model's streamed pieces into events, and events into a message."""

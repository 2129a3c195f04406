"""Replays: an agent runs from the input of a recorded run, with recorded answers in place of models and tools."""

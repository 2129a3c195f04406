"""Tries one middleware in many conversations."""

"""Checks one middleware in many conversations."""

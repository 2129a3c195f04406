"""Checks of state stores."""

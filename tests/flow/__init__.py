"""Tests of where values come from and where they may go."""

"""Stores in databases: their common base, and a file for each database."""

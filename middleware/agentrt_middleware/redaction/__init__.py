"""Redaction: keeps private data from models, listeners and saved states."""

"""Databases in files and on servers: connections, access from threads, and errors."""

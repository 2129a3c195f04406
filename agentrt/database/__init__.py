"""Databases in files and on servers: how they are reached from threads, opened, and what their errors mean."""

__all__: list[str] = []

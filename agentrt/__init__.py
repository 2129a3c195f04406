"""A runtime for LLM agents whose whole behaviour is a set of compiled middleware chains."""

__version__ = "0.1.0"

__all__ = ["__version__"]

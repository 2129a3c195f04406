"""Wrong guesses are answered with what to write: decorators for classes and functions."""

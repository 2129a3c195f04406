"""Events as text for a terminal."""

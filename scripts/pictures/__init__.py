"""The pictures of the studio in the documentation, of a real run: `python -m scripts.pictures`."""

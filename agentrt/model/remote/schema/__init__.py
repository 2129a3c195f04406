"""JSON schemas of answers in the terms of a provider: the keywords that it knows, and its own mode for them."""

"""Knowledge for the model: what is retrieved, how it is shown, and what the answer cites."""

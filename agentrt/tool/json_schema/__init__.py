"""JSON schemas compiled into functions that check and convert arguments."""

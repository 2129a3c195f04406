"""Messages on standard output, in queues and as audio."""

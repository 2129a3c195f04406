"""What all models behind an HTTP API share: the client, its stream, server-sent events, errors."""

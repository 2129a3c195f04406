"""HTTP APIs of other programs: one kind of peer for models, embeddings, A2A agents and MCP servers."""

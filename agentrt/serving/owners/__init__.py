"""Who asks a server, which sessions are theirs, and how much they may take."""

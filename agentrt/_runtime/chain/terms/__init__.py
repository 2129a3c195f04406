"""Terms that a user states for layers: when a layer holds, within what time, and in which bundle."""

"""One conversation and its reply in progress: whose turn it is, the inputs, the next step, the stream."""

"""The notifications of observers: the events of a reply, and the calls that reach a model."""

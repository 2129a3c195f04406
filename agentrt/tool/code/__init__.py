"""Code mode: a tool that runs a program of the model, whose functions are tools."""

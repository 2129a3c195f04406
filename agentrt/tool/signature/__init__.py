"""From a function to the schema of its parameters, and to what checks the arguments that a model writes."""

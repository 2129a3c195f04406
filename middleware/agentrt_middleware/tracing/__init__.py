"""Spans and metrics by the conventions of OpenTelemetry; the public names are in `agentrt.middleware`."""

"""Spans and metrics by the conventions of OpenTelemetry; what is public of it is in `agentrt.middleware`."""

__all__: list[str] = []

"""AG-UI at `/agui`. Its events are written here as the JSON that they are; https://docs.ag-ui.com has the protocol."""

"""Held values: a conversation keeps them back, and handles stand for them.

`handles.py` has the values and their labels, `release.py` replaces handles in values and messages, and `events.py` in
the events of a reply. No other room reads `AgentState.held`.
"""

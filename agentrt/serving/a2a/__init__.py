"""A2A at `/a2a`. Its messages are written here as plain JSON; https://a2a-protocol.org describes the protocol.

The SDK's own server parts are not used: they keep tasks of their own beside the sessions, run on asyncio alone, read
bodies of any size, and send the messages of exceptions to clients.
"""

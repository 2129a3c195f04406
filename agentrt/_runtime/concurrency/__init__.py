"""Background tasks, event loops and interrupts, for asyncio and trio alike."""

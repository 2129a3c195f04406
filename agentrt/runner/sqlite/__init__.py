"""The queue of one machine: requests in an SQLite database, and the lock of the one process that works on it."""

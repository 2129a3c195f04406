"""Storage of middlewares outside the process: access to Redis and SQLite, and handling of failures."""

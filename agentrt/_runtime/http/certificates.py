"""The certificates that connections trust, loaded once: that takes longer than all else that a client needs."""

import os
import ssl
from functools import cache


def ssl_context() -> ssl.SSLContext:
    """Return the context of all connections, with the certificates that the environment or the system names."""
    return _load_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _load_context(*_variables: str | None) -> ssl.SSLContext:
    import httpx2  # slow to load

    return httpx2.create_ssl_context()

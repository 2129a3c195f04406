"""The listening socket of a server: bound by a process that need not load what serves on it."""

import os
import socket
from ipaddress import ip_address

from agentrt.errors import ConfigError


def listen(host: str, port: int, *, why_local: str | None) -> socket.socket:
    """Return a listening socket; raises `ConfigError` if that is impossible.

    With `why_local`, a reason and a remedy, no address is allowed that lets other machines in.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must be a number from 0 to 65535, not {port}")
    try:
        # Of several addresses of a name, the one that a client would try first.
        family, *_, address = socket.getaddrinfo(host or "::", port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host!r:.200} is not an address of this machine: write 127.0.0.1") from None
    # The address, not the name, which may lead anywhere.
    if why_local is not None and not ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ConfigError(f"--host {host} lets other machines in, and {why_local}, or leave --host out")
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {url_of(address)}: {os.strerror(error.errno or 0)}; --port names another port"
        ) from error


def url_of(address: tuple[object, ...]) -> str:
    """Return the URL of a server at the address of a socket."""
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"http://{host}:{address[1]}"

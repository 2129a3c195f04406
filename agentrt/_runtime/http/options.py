"""Checks of the options that models, embeddings, A2A agents and MCP servers have in common."""

from collections.abc import Mapping

from agentrt.errors import ConfigError


def check_headers(option: str, headers: object) -> None:
    """Raise `ConfigError` for anything but a dict of `str`, without its values: headers may hold secrets."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__
        raise ConfigError(f'{option} must be a dict, as in {{"x-team": "blue"}}, not of type {kind!r}')
    if not all(isinstance(text, str) for header in headers.items() for text in header):
        raise ConfigError(f'{option} must have a str for each name and value, as in {{"x-team": "7"}}')


def check_sign(option: str, sign: object) -> None:
    """Raise `ConfigError` for anything but a function."""
    if sign is not None and not callable(sign):
        raise ConfigError(
            f"{option} must be a function of method, url and body that returns headers, not of type "
            f"{type(sign).__name__!r}"
        )


def check_http_client(option: str, http_client: object) -> None:
    """Raise `ConfigError` for anything but a function, such as a client, which belongs to one event loop."""
    if http_client is not None and not callable(http_client):
        raise ConfigError(
            f"{option} must be a function that makes a client, not {http_client!r:.100}: write "
            f"http_client=lambda: httpx2.AsyncClient(...)"
        )


def check_max_bytes(option: str, size: object) -> None:
    """Raise `ConfigError` for anything but a positive number."""
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not size > 0:
        raise ConfigError(f"{option} must be a number of bytes above 0, or math.inf, not {size!r:.100}")

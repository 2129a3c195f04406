"""The proxies that the environment names, for connections that httpx2 does not choose them for."""

import os
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for the URL, `None` for a direct connection.

    It is the one that httpx2 takes, except that ".example.com" in NO_PROXY means "example.com" as well.
    """
    parts, proxies = urlsplit(url), getproxies()
    host = parts.hostname or ""
    if proxy_bypass(parts.netloc.rpartition("@")[2]) or proxy_bypass(host):
        return None
    # NO_PROXY may have networks, which httpx2 knows and Python does not.
    networks = [entry.strip() for entry in proxies.get("no", "").split(",") if "/" in entry and "://" not in entry]
    with suppress(ValueError):  # a host that is not an address
        address = ip_address(host)
        if any(address in ip_network(network, strict=False) for network in networks):
            return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def proxy_question(url: str) -> str:
    """Return the question whether the environment's proxy, if any, is right: HTTP clients use it silently."""
    names = (name for word in (urlsplit(url).scheme, "all") for name in (f"{word}_proxy".upper(), f"{word}_proxy"))
    variables = [name for name in names if os.environ.get(name)]
    return f"; is the proxy in the environment's {' and '.join(variables)} right?" if variables else ""

"""The proxy of the environment is chosen as httpx2 chooses it."""

from typing import Any

import httpx2
import pytest

from agentrt._runtime.http.proxy import proxy_for


@pytest.mark.parametrize(
    "no_proxy", ["", "*", "example.com", "other.example", "10.0.0.0/8", "10.1.2.3, ::1", "localhost"]
)
@pytest.mark.parametrize("names", [("HTTP_PROXY",), ("https_proxy", "ALL_PROXY")])
def test_proxy_is_the_one_that_httpx2_takes(no_proxy: str, names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    for name in names:
        monkeypatch.setenv(name, f"{name.replace('_', '')}.example:8080")
    client: Any = httpx2.AsyncClient(verify=False)
    for host in ("example.com", "a.example.com", "notexample.com", "10.1.2.3", "[::1]", "localhost"):
        for scheme in ("http", "https"):
            url = f"{scheme}://{host}/mcp"
            transport = client._transport_for_url(httpx2.URL(url))
            pool = transport._pool
            chosen = f"http://{pool._proxy_url.host.decode()}:8080" if hasattr(pool, "_proxy_url") else None
            assert (proxy_for(url) or "").lower() == (chosen or "").lower(), url

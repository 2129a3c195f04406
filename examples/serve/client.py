"""Send a message to a served agent, approve its calls, and reconnect after a lost connection.

python client.py http://127.0.0.1:8000 ann/1 'Take a note: "buy milk"'
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

HEADERS = {"Content-Type": "application/json"}
if token := os.environ.get("TOKEN"):
    HEADERS["Authorization"] = f"Bearer {token}"


def send(server: str, session: str, body: dict[str, Any]) -> str:
    """Start or resume a reply, and return the path of its events."""
    url = f"{server}/api/sessions/{quote(session, safe='')}/replies"
    with urlopen(Request(url, json.dumps(body).encode(), HEADERS)) as response:
        path: str = json.load(response)["events"]
        return path


def follow(url: str, last: int) -> Iterator[dict[str, Any]]:
    """Return the events after the last one, until the reply is over or waits for an answer."""
    while True:
        try:
            with urlopen(Request(url, headers={**HEADERS, "Last-Event-ID": str(last)})) as response:
                for line in response:
                    if line.startswith(b"event: done"):
                        return
                    if line.startswith(b"data: "):
                        event = json.loads(line.removeprefix(b"data: "))
                        last = event["seq"]
                        yield event
        except HTTPError as error:
            if error.code != 503:
                raise
        except (HTTPException, URLError, OSError):
            pass  # the connection was cut, or the server restarts
        time.sleep(0.5)


def main(server: str, session: str, text: str) -> None:
    body: dict[str, Any] | None = {"input": text}
    last = 0
    while body is not None:
        path, body = send(server, session, body), None
        for event in follow(server + path, last):
            if event["type"] == "TEXT_BLOCK_DELTA":
                print(event["delta"], end="", flush=True)
            elif event["type"] == "TEXT_BLOCK_END":
                print()
            elif event["type"] == "REQUIRE_USER_CONFIRM":
                for call in event["tool_calls"]:
                    print(f"[approved] {call['name']} {call['input']}")
                calls = {call["id"]: True for call in event["tool_calls"]}
                body, last = {"answer": {"reply_id": event["reply_id"], "calls": calls}}, event["seq"]


if __name__ == "__main__":
    main(*sys.argv[1:])
